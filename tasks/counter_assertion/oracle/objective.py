"""The objective of one sample's trained tokens once more, in float64, written apart from the trainer's loss.

PPO's clipped surrogate (arXiv:1707.06347 eq. 7) with dual clip (arXiv:1912.09729 eq. 5), GSPO's sequence ratio
(arXiv:2507.18071 eq. 5), CISPO (arXiv:2506.13585 eq. 4), truncated or masked importance weights, the KL estimates of
Schulman (2020) and the entropy bonus.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from infra.scenario.training import Training


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """[trained tokens] of one sample. `log_probs` and `entropy` carry gradients, nothing else does.

    Args:
        old: log-probs before the iteration's first step.
        reference: log-probs of the run's first weights.
        engine: log-probs of the engine that sampled; None where the scenario does not correct for them.
    """

    log_probs: Tensor
    entropy: Tensor
    advantages: Tensor
    old: Tensor
    reference: Tensor
    engine: Tensor | None


def objective(tokens: Tokens, training: Training) -> Tensor:
    """[trained tokens] what the loss sums up, before the sample's weight."""
    loss = _policy(tokens, training)
    if tokens.engine is not None:
        loss = loss * _importance(tokens.old, tokens.engine, training)
    if training.kl_coefficient:
        loss = loss + training.kl_coefficient * _kl(tokens.log_probs, tokens.reference, training.kl_estimator)
    return loss - training.entropy_coefficient * tokens.entropy


def _policy(tokens: Tokens, training: Training) -> Tensor:
    least, most, a = 1 - training.clip_low, 1 + training.clip_high, tokens.advantages
    shift = tokens.log_probs - tokens.old
    if training.estimator == "cispo":
        return -torch.exp(shift).detach().clamp(least, most) * a * tokens.log_probs
    ratio = torch.exp(shift.mean().expand_as(shift) if training.estimator == "gspo" else shift)
    surrogate = torch.minimum(ratio * a, ratio.clamp(least, most) * a)
    if training.dual_clip is not None:
        surrogate = torch.where(a < 0, torch.maximum(surrogate, training.dual_clip * a), surrogate)
    return -surrogate


def at_a_clip(tokens: Tokens, training: Training, within: float) -> Tensor:
    """[trained tokens] whether a rounding of the ratio decides on which side of a clip a token is.

    There the gradient jumps between 0 and the whole of the token's, so nothing can be said of it. CISPO's weight does
    not jump.

    Args:
        within: what a rounding of the ratio comes to, relative.
    """
    if training.estimator == "cispo":
        return torch.zeros_like(tokens.old, dtype=torch.bool)
    shift = (tokens.log_probs - tokens.old).detach()
    ratio = torch.exp(shift.mean().expand_as(shift) if training.estimator == "gspo" else shift)
    edges = [1 - training.clip_low, 1 + training.clip_high, *([training.dual_clip] if training.dual_clip else [])]
    near = torch.stack([(ratio - edge).abs() <= within * edge for edge in edges]).any(0)
    return near & (tokens.advantages != 0)


def _importance(old: Tensor, engine: Tensor, training: Training) -> Tensor:
    ratio = torch.exp(old - engine)
    if training.importance_correction == "truncate":
        return ratio.clamp(max=training.importance_high)
    kept = (ratio >= training.importance_low) & (ratio <= training.importance_high)
    return ratio * kept


def _kl(log_probs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    behind = reference - log_probs
    if estimator == "k1":
        return -behind
    if estimator == "k2":
        return behind**2 / 2
    if estimator == "low_var":
        behind = behind.clamp(-20, 20)
    k3 = torch.expm1(behind) - behind
    return k3.clamp(-10, 10) if estimator == "low_var" else k3
