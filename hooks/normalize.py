"""Group-relative reward normalisation (GRPO with outcome rewards, arXiv:2402.03300 section 4.1.2), and its hook forms.

Groups are formed by `group_index`, never by position or count. Statistics are in float64.

A hook is `fn(args, samples) -> (raw_rewards, normalised_rewards)`, both in the order of `samples`. Samples that are
removed, and rollouts with an aborted sibling, stay out of the statistics and get 0: they are not trained.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hooks.sample import rollout_id_of, rollout_of

STD_EPSILON = 1e-6
ROUNDING = 1e-6  # a std of at most this share of the group's largest absolute reward is rounding, not signal

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class RewardRefused(ValueError):
    """A reward is missing, not finite, or differs between siblings. `ids` are the rollouts, or indices without one."""

    def __init__(self, message: str, ids: Sequence[object]):
        super().__init__(message)
        self.ids = tuple(ids)


def advantages_by_rollout(
    rewards: ArrayLike,
    rollout: ArrayLike,
    group: ArrayLike,
    *,
    divide_by_std: bool = True,
    siblings_scored_apart: bool = False,
) -> Floats:
    """Advantage of every sample, from statistics over the rollouts of its prompt group: one vote per rollout.

    Args:
        rewards: [samples] raw reward of each sample's rollout; siblings carry the same value.
        rollout: [samples] rollout id. Siblings share it.
        group: [samples] prompt group of the rollout.
        siblings_scored_apart: siblings may differ; the rollout's vote is then their mean.
    Returns:
        [samples] float64. A group of one rollout, or of equal rewards, gets exactly 0.
    Raises:
        RewardRefused: siblings of one rollout carry different rewards, or a reward is not finite.

    Example: rewards 1 | 0 0 0 of two rollouts in one group, no std -> .5 | -.5 -.5 -.5
    """
    votes, vote_group, member = _votes(rewards, rollout, group, siblings_scored_apart)
    return _group_relative(votes, vote_group, divide_by_std)[member]


def advantages_by_sample(rewards: ArrayLike, group: ArrayLike, *, divide_by_std: bool = True) -> Floats:
    """Advantage of every sample, from statistics over the samples of its group: a rollout votes once per sibling.

    Args and returns as `advantages_by_rollout`, but a group of one sample is the singleton.
    Raises:
        RewardRefused: a reward is not finite.
    """
    values, groups = np.asarray(rewards, np.float64), np.asarray(group, np.int64)
    _refuse_not_finite(values, groups, "prompt groups")
    return _group_relative(values, np.unique(groups, return_inverse=True)[1], divide_by_std)


def advantages_rloo(
    rewards: ArrayLike, rollout: ArrayLike, group: ArrayLike, *, siblings_scored_apart: bool = False
) -> Floats:
    """Reward minus the mean reward of the group's OTHER rollouts (RLOO, arXiv:2402.14740); no division by a std.

    Args, returns and errors as `advantages_by_rollout`.
    """
    votes, vote_group, member = _votes(rewards, rollout, group, siblings_scored_apart)
    count = np.bincount(vote_group)[vote_group]
    centred = _group_relative(votes, vote_group, divide_by_std=False)
    return (centred * count / np.maximum(count - 1, 1))[member]


def _votes(
    rewards: ArrayLike, rollout: ArrayLike, group: ArrayLike, siblings_scored_apart: bool
) -> tuple[Floats, Integers, Integers]:
    """One reward and group number per rollout, [rollouts], sorted by (group, rollout), and each sample's rollout."""
    values = np.asarray(rewards, np.float64)
    rollouts, rollout_code = np.unique(np.asarray(rollout, np.int64), return_inverse=True)
    _refuse_not_finite(values, rollouts[rollout_code], "rollouts")
    _, group_code = np.unique(np.asarray(group, np.int64), return_inverse=True)
    keys, first, member = np.unique(
        group_code * max(len(rollouts), 1) + rollout_code, return_index=True, return_inverse=True
    )
    votes = values[first]
    differing = values != votes[member]
    if differing.any() and not siblings_scored_apart:
        ids = np.unique(rollouts[rollout_code[differing]]).tolist()
        raise RewardRefused(f"Siblings carry different rewards in rollouts {_some(ids)}.", ids)
    if differing.any():
        votes = np.bincount(member, values, len(keys)) / np.bincount(member, minlength=len(keys))
    return votes, group_code[first], member


def _group_relative(votes: Floats, group: Integers, divide_by_std: bool) -> Floats:
    """[votes] vote minus the mean of its group, over the group's unbiased std; exactly 0 where nothing varies."""
    count = np.bincount(group)
    centred = votes - (np.bincount(group, votes) / np.maximum(count, 1))[group]
    spread = np.sqrt(np.bincount(group, centred**2) / np.maximum(count - 1, 1))
    largest = np.zeros(len(count))
    np.maximum.at(largest, group, np.abs(votes))
    varies = (count > 1) & (spread > ROUNDING * largest)
    scaled = centred / (spread + STD_EPSILON)[group] if divide_by_std else centred
    return np.where(varies[group], scaled, 0.0)


def _refuse_not_finite(values: Floats, ids: Integers, what: str) -> None:
    if not np.isfinite(values).all():
        bad = np.unique(ids[~np.isfinite(values)]).tolist()
        raise RewardRefused(f"Rewards that are not finite in {what} {_some(bad)}.", bad)


def by_rollout(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """Hook: GRPO with one vote per rollout (the default). A sample without rollout_id is a rollout of its own."""
    return _normalise(args, samples, _by_rollout)


def by_sample(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """Hook: statistics over samples, as slime's `grpo_normalize_by_group_index`: three siblings vote three times."""
    return _normalise(args, samples, _by_sample)


def rloo(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """Hook: reward minus the mean of the group's other rollouts."""
    return _normalise(args, samples, _rloo)


def identity(args: Any, samples: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """Hook: the raw reward itself."""
    return _normalise(args, samples, _identity)


Formula = Callable[[Any, Floats, Integers, Integers], Floats]


def _by_rollout(args: Any, rewards: Floats, rollout: Integers, group: Integers) -> Floats:
    apart = _scored_apart(args)
    return advantages_by_rollout(
        rewards, rollout, group, divide_by_std=args.grpo_std_normalization, siblings_scored_apart=apart
    )


def _by_sample(args: Any, rewards: Floats, rollout: Integers, group: Integers) -> Floats:
    _votes(rewards, rollout, group, _scored_apart(args))  # refuses siblings that differ
    return advantages_by_sample(rewards, group, divide_by_std=args.grpo_std_normalization)


def _rloo(args: Any, rewards: Floats, rollout: Integers, group: Integers) -> Floats:
    return advantages_rloo(rewards, rollout, group, siblings_scored_apart=_scored_apart(args))


def _identity(args: Any, rewards: Floats, rollout: Integers, group: Integers) -> Floats:
    _votes(rewards, rollout, group, _scored_apart(args))
    return rewards


def _scored_apart(args: Any) -> bool:
    """False where the host system (slime) has no such setting."""
    return bool(getattr(args, "siblings_scored_apart", False))


def _normalise(args: Any, samples: Sequence[Any], formula: Formula) -> tuple[list[Any], list[float]]:
    raw = _raw_rewards(args, samples)
    kept = _in_the_statistics(samples)
    _refuse_missing(samples, raw, kept)
    group = np.fromiter((samples[k].group_index for k in kept), np.int64, len(kept))
    rewards = np.fromiter((raw[k] for k in kept), np.float64, len(kept))
    normalised = np.zeros(len(samples))
    normalised[kept] = formula(args, rewards, _rollout_keys(samples, kept), group)
    return raw, normalised.tolist()


def _raw_rewards(args: Any, samples: Sequence[Any]) -> list[Any]:
    if getattr(args, "reward_key", None) is None:
        return [s.reward for s in samples]
    return [s.get_reward_value(args) for s in samples]


def _in_the_statistics(samples: Sequence[Any]) -> list[int]:
    """Positions of the samples that vote: not removed, and of a rollout without an aborted sibling."""
    aborted = [k for k, s in enumerate(samples) if s.status.value == "aborted"]
    if not aborted:
        return [k for k, s in enumerate(samples) if not s.remove_sample]
    alone, rollouts = set(aborted), {rollout_id_of(samples[k]) for k in aborted} - {None}
    voting = (k for k, s in enumerate(samples) if not s.remove_sample and k not in alone)
    return [k for k in voting if rollout_id_of(samples[k]) not in rollouts]


def _rollout_keys(samples: Sequence[Any], kept: list[int]) -> Integers:
    """[kept] rollout id; a sample without one gets a negative key of its own, which no id has."""
    ids = (rollout_id_of(samples[k]) for k in kept)
    return np.fromiter((-1 - k if i is None else i for k, i in enumerate(ids)), np.int64, len(kept))


def _refuse_missing(samples: Sequence[Any], raw: list[Any], kept: list[int]) -> None:
    if ungraded := [_name(samples[k]) for k in kept if raw[k] is None]:
        raise RewardRefused(f"Reward missing: {_some(ungraded)}. A missing reward is never taken as 0.", ungraded)
    if ungrouped := [_name(samples[k]) for k in kept if samples[k].group_index is None]:
        raise RewardRefused(f"No group_index: {_some(ungrouped)}. Groups are never formed by position.", ungrouped)


def _name(sample: Any) -> str:
    return " ".join(map(str, rollout_of(sample)))


def _some(ids: Sequence[object], limit: int = 10) -> str:
    more = f" and {len(ids) - limit} more" if len(ids) > limit else ""
    return ", ".join(map(str, ids[:limit])) + more
