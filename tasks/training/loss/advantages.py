"""Advantages of single tokens from rewards of samples. `segments` numbers each token's sample: [tokens], from 0."""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, all_reduce

from infra.scenario.training import Training

WHITENING_EPSILON = 1e-8
ROUNDING = 1e-6  # a deviation of at most this share of the values' root mean square is rounding, not signal


def token_advantages(
    rewards: Tensor,
    segments: Tensor,
    mask: Tensor,
    training: Training,
    *,
    kl: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """[tokens] advantages of the scenario's estimator, before whitening.

    Args:
        rewards: [samples] as the reward post-process left them: normalised for the group-relative estimators, the raw
            reward for reinforce++ and gae, less the group's mean for the baseline form.
        kl: [tokens] estimates against the reference, where the scenario lowers rewards by them.
        values: [tokens] of a critic, for gae.
    """
    if not training.rewards_tokens:
        return broadcast(rewards, segments)
    kl = rewards.new_zeros(len(segments)) if kl is None else kl
    coefficient = training.kl_reward_coefficient
    if training.estimator == "reinforce++-baseline":
        return reinforce_plus_plus_baseline(rewards, kl, segments, mask, kl_coefficient=coefficient)
    if training.uses_values:
        assert values is not None, "gae takes a critic's values"
        per_token = token_rewards(rewards, kl, segments, mask, kl_coefficient=coefficient)
        return gae(per_token, values, segments, mask, gamma=training.gamma, lambda_=training.gae_lambda)[0]
    return reinforce_plus_plus(rewards, kl, segments, mask, kl_coefficient=coefficient, gamma=training.gamma)


def broadcast(advantages: Tensor, segments: Tensor) -> Tensor:
    """[tokens] the sample's advantage at each of its tokens (grpo, gspo, cispo, rloo): [samples] -> [tokens]."""
    return advantages[segments]


def token_rewards(rewards: Tensor, kl: Tensor, segments: Tensor, mask: Tensor, *, kl_coefficient: float) -> Tensor:
    """[tokens] minus the KL penalty at trained tokens, plus the sample's reward at its last trained token.

    Args:
        rewards: [samples]. kl: [tokens], not changed. mask: [tokens] of 0/1.
    """
    trained = mask != 0
    positions = torch.arange(len(segments), device=segments.device)
    last = torch.full((len(rewards),), -1, device=segments.device)
    last = last.scatter_reduce(0, segments[trained], positions[trained], "amax")
    result = torch.where(trained, -kl_coefficient * kl, 0).to(rewards.dtype)
    some = last >= 0
    return result.index_add(0, last[some], rewards[some])


def reinforce_plus_plus(
    rewards: Tensor, kl: Tensor, segments: Tensor, mask: Tensor, *, kl_coefficient: float = 0.0, gamma: float = 1.0
) -> Tensor:
    """[tokens] discounted return from each trained token on (arXiv:2501.03262), to be whitened over the batch."""
    per_token = token_rewards(rewards, kl, segments, mask, kl_coefficient=kl_coefficient)
    return gae(per_token, torch.zeros_like(per_token), segments, mask, gamma=gamma, lambda_=1.0)[0]


def reinforce_plus_plus_baseline(
    centred: Tensor, kl: Tensor, segments: Tensor, mask: Tensor, *, kl_coefficient: float = 0.0
) -> Tensor:
    """[tokens] reward minus its group's mean, minus the KL penalty (arXiv:2501.03262), to be whitened over the batch.

    Args:
        centred: [samples] rewards normalised by group, without division by the std.
    """
    return torch.where(mask != 0, centred[segments] - kl_coefficient * kl, 0)


def gae(
    rewards: Tensor, values: Tensor, segments: Tensor, mask: Tensor, *, gamma: float, lambda_: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv:1506.02438 eq. 16) along each sample's trained tokens.

    Tokens that are not trained (tool output) take no time: the step goes from one trained token to the next.

    Args:
        rewards, values: [tokens], not changed.
    Returns:
        ([tokens] advantages, [tokens] returns), 0 where not trained.
    """
    at = torch.nonzero(mask != 0)[:, 0]
    samples = segments[at]
    columns = _place_within(samples)
    width = int(columns.max()) + 1 if len(at) else 0
    shape = (int(samples.max()) + 1 if len(at) else 0, width + 1)
    value, delta = rewards.new_zeros(shape), rewards.new_zeros(shape)
    value[samples, columns] = values[at]
    delta[samples, columns] = rewards[at]
    delta[:, :-1] += gamma * value[:, 1:]
    delta -= value
    for t in range(width - 1, -1, -1):
        delta[:, t] += gamma * lambda_ * delta[:, t + 1]
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    advantages[at] = delta[samples, columns]
    returns[at] = advantages[at] + values[at]
    return advantages, returns


def _place_within(samples: Tensor) -> Tensor:
    """[trained tokens] how many trained tokens of the same sample come before."""
    order = torch.argsort(samples, stable=True)
    counts = torch.bincount(samples)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    place = torch.empty_like(samples)
    place[order] = torch.arange(len(samples), device=samples.device) - starts
    return place


def whiten(values: Tensor, mask: Tensor, *, group: ProcessGroup | None = None, shift_mean: bool = True) -> Tensor:
    """[tokens] mean 0 and unbiased variance 1 over the trained tokens of all ranks of `group`; 0 where not trained.

    Values whose deviation is rounding have nothing to scale: their centred form is 0.

    Args:
        shift_mean: False keeps the mean, as for values.
    """
    trained = mask != 0
    kept = torch.where(trained, values, 0)
    sums = torch.stack([trained.sum().to(kept.dtype), kept.sum(), kept.square().sum()])
    count, total, raw_square = _summed(sums, group)
    mean = total / count.clamp(min=1)
    centred = torch.where(trained, values - mean, 0)
    (square,) = _summed(centred.square().sum()[None], group)
    scale = torch.rsqrt(square / (count - 1).clamp(min=1) + WHITENING_EPSILON)
    scaled = centred * torch.where(square > ROUNDING**2 * raw_square, scale, 0)
    return scaled if shift_mean else torch.where(trained, scaled + mean, 0)


def _summed(sums: Tensor, group: ProcessGroup | None) -> Tensor:
    if group is not None:
        all_reduce(sums, group=group)
    return sums
