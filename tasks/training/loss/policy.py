"""Policy-gradient losses of single tokens, without mask and weight. Each gives (loss, clipped), [tokens] both."""

import torch
from torch import Tensor


def ppo_loss(
    log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective (arXiv:1707.06347 eq. 7) with separate bounds; dual clip as arXiv:1912.09729 eq. 5.

    Args:
        log_ratio: [tokens] log-prob minus old log-prob.
        advantages: [tokens].
        dual_clip: c above 1: for negative advantages the loss is at most c times the absolute advantage.

    Example: ratio 2, 2, .5; advantage 2, -2, 2; clip .2, dual clip 1.5 -> -2.4, 3, -1
    """
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss, clipped = torch.maximum(plain, bounded), bounded > plain
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        negative = advantages < 0
        clipped = clipped | (negative & (loss > ceiling))
        loss = torch.where(negative, torch.minimum(loss, ceiling), loss)
    return loss, clipped


def sequence_log_ratio(log_ratio: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
    """[tokens] the mean log ratio over each sample's trained tokens, for GSPO (arXiv:2507.18071 eq. 7 and 14).

    The value is the sequence's, the gradient goes to each token's own log-prob: summed over a sample's trained tokens
    with equal weights, value and gradient are those of the sequence objective times the number of these tokens.

    Args:
        log_ratio: [tokens]. segments: [tokens] number of each token's sample. mask: [tokens] of 0/1.
    """
    samples = int(segments.max()) + 1 if len(segments) else 0
    trained = mask.to(log_ratio.dtype)
    total = log_ratio.new_zeros(samples).index_add(0, segments, (log_ratio * trained).detach())
    count = log_ratio.new_zeros(samples).index_add(0, segments, trained)
    return (total / count.clamp(min=1))[segments] + log_ratio - log_ratio.detach()


def cispo_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """CISPO (arXiv:2506.13585 eq. 4): the clipped ratio is a constant weight, every token keeps its gradient.

    Args:
        log_probs, old_log_probs, advantages: [tokens].
    """
    ratio = (log_probs - old_log_probs).detach().exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantages * log_probs, weight != ratio
