"""The loss of single tokens: policy term, KL to the reference, entropy bonus. Weights and denominators are elsewhere:
`tasks.training.weights` is the one place that computes them."""

import torch
from torch import Tensor

from infra.scenario.training import Training
from tasks.training.loss.importance import ImportanceCorrection, importance_weights
from tasks.training.loss.kl import kl_estimate
from tasks.training.loss.policy import cispo_loss, ppo_loss, sequence_log_ratio


def token_loss(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    segments: Tensor,
    mask: Tensor,
    training: Training,
    reference_log_probs: Tensor | None = None,
    entropy: Tensor | None = None,
    engine_log_probs: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of every response token of a micro-batch; the step's loss is the sum of weight * loss over its tokens.

    Args:
        log_probs: [tokens] of the present weights, of logits divided by the rollout temperature.
        old_log_probs: [tokens] the trainer's, before the iteration's first step.
        advantages: [tokens].
        segments: [tokens] number of each token's sample in the micro-batch, from 0.
        mask: [tokens] of 0/1; what is masked has loss and metrics of exactly 0, whatever its log-probs are.
        reference_log_probs: [tokens] of the reference, for the KL term; the KL is reported at coefficient 0 too.
        entropy: [tokens] for the entropy bonus.
        engine_log_probs: [tokens] as the engine sampled them, for the scenario's importance correction.
    Returns:
        ([tokens] loss, metrics of [tokens] without gradient: `ratio_error` |ratio - 1| of single tokens, `clipped` 0/1,
        `approx_kl` old minus new log-prob, and where they are known `kl`, `entropy`, `importance_weight`).

    Example: ratio 1 everywhere, no KL and entropy -> the loss is minus the advantage
    """
    trained = mask != 0
    new, old, advantage = (_only(trained, x) for x in (log_probs, old_log_probs, advantages))
    loss, clipped = _policy_loss(new, old, advantage, segments, trained, training)
    metrics = {"ratio_error": ((new - old).exp() - 1).abs(), "clipped": clipped, "approx_kl": old - new}
    correction = ImportanceCorrection.of(training)
    if engine_log_probs is not None and correction is not None:
        weight = importance_weights(old, _only(trained, engine_log_probs), correction)
        loss, metrics["importance_weight"] = loss * weight, weight
    if reference_log_probs is not None:
        kl = kl_estimate(new, _only(trained, reference_log_probs), training.kl_estimator)
        loss, metrics["kl"] = loss + training.kl_coefficient * kl, kl
    if entropy is not None:
        loss, metrics["entropy"] = loss - training.entropy_coefficient * _only(trained, entropy), entropy
    return _only(trained, loss), {name: _only(trained, m.detach().to(loss.dtype)) for name, m in metrics.items()}


def _policy_loss(
    new: Tensor, old: Tensor, advantages: Tensor, segments: Tensor, trained: Tensor, training: Training
) -> tuple[Tensor, Tensor]:
    low, high = training.clip_low, training.clip_high
    if training.estimator == "cispo":
        return cispo_loss(new, old, advantages, clip_low=low, clip_high=high)
    log_ratio = new - old
    if training.estimator == "gspo":
        log_ratio = sequence_log_ratio(log_ratio, segments, trained)
    return ppo_loss(log_ratio, advantages, clip_low=low, clip_high=high, dual_clip=training.dual_clip)


def _only(trained: Tensor, values: Tensor) -> Tensor:
    """The values where trained, 0 elsewhere: what is not finite there does not pass, nor does its gradient."""
    return torch.where(trained, values, 0)
