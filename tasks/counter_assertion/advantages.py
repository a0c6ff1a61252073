"""Group-relative advantages once more, in plain loops over float64, written apart from the product they judge.

GRPO with outcome rewards (arXiv:2402.03300, section 4.1.2); without the division it is Dr. GRPO (arXiv:2503.20783);
leave-one-out is RLOO (arXiv:2402.14740).
"""

import statistics
from collections.abc import Sequence

from tasks.counter_assertion.evidence import Key, StoredSample, trainable

STD_EPSILON = 1e-6
ROUNDING = 1e-6  # a spread of at most this share of the largest reward is rounding, not signal

BY_SAMPLE = ("hooks.normalize.by_sample", "hooks.fanout.grpo_normalize_by_group_index")
LEAVE_ONE_OUT = ("hooks.normalize.rloo",)
AS_IT_IS = ("hooks.normalize.identity",)
SHIPPED = ("hooks.normalize.by_rollout", *BY_SAMPLE, *LEAVE_ONE_OUT, *AS_IT_IS)


def expected_advantages(samples: Sequence[StoredSample], hook: str, *, divide_by_std: bool) -> dict[Key, float]:
    """Advantage of every sample that may be trained, from raw rewards.

    Args:
        samples: all samples of an iteration with their raw rewards; removed and aborted ones are left out.
        hook: dotted path of a shipped normalisation hook.
    """
    graded = [s for s in trainable(samples) if s.reward is not None]
    if hook in AS_IT_IS:
        return {s.key: _reward(s) for s in graded}
    groups: dict[int, list[StoredSample]] = {}
    for sample in graded:
        groups.setdefault(sample.group_index, []).append(sample)
    expected: dict[Key, float] = {}
    for members in groups.values():
        voters: dict[Key, list[float]] = {}
        for s in members:
            voters.setdefault(_voter(s, hook), []).append(_reward(s))
        # A rollout whose siblings are scored apart votes with their mean; otherwise all of them carry the same reward.
        votes = [r[0] if len(set(r)) == 1 else statistics.fmean(r) for r in voters.values()]
        scaled = _leave_one_out(votes) if hook in LEAVE_ONE_OUT else _group_relative(votes, divide_by_std)
        of_voter = dict(zip(voters, scaled, strict=True))
        expected.update({s.key: of_voter[_voter(s, hook)] for s in members})
    return expected


def _reward(sample: StoredSample) -> float:
    assert sample.reward is not None, sample.key
    return float(sample.reward)


def _voter(sample: StoredSample, hook: str) -> Key:
    return sample.key if hook in BY_SAMPLE else (sample.rollout_id, 0)


def _group_relative(votes: list[float], divide_by_std: bool) -> list[float]:
    mean = statistics.fmean(votes)
    if not _varies(votes):
        return [0.0] * len(votes)
    return [(v - mean) / (statistics.stdev(votes) + STD_EPSILON if divide_by_std else 1.0) for v in votes]


def _leave_one_out(votes: list[float]) -> list[float]:
    if not _varies(votes):
        return [0.0] * len(votes)
    return [v - (sum(votes) - v) / (len(votes) - 1) for v in votes]


def _varies(votes: list[float]) -> bool:
    return len(votes) > 1 and statistics.stdev(votes) > ROUNDING * max(abs(v) for v in votes)
