"""How fast rewards are normalised: the vectorised formula, and its hook, beside plain Python loops, in one run."""

import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from hooks.normalize import STD_EPSILON, Floats, Integers, advantages_by_rollout, by_rollout
from hooks.sample import Sample
from infra.bench.growth import growth

SIZES = (1_000, 10_000, 100_000, 1_000_000)
ROLLOUTS_PER_GROUP = 8


def run(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Seconds of CPU time by number of samples (fan-out 1 to 3, groups of 8 rollouts), and the largest difference.

    `seconds` is the formula on arrays, `hook_seconds` the hook on as many sample objects, which reads them first.
    """
    rows = [_measure(size) for size in sizes]
    return {"sizes": rows, "growth": growth([row["seconds"] for row in rows])}


def _measure(size: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rollout = np.repeat(np.arange(size), rng.integers(1, 4, size))[:size]
    group, rewards = rollout // ROLLOUTS_PER_GROUP, rng.integers(0, 5, size)[rollout].astype(np.float64)
    started = time.process_time()
    advantages = advantages_by_rollout(rewards, rollout, group)
    middle = time.process_time()
    reference = _plain(rewards.tolist(), rollout.tolist(), group.tolist())
    plain_seconds = time.process_time() - middle
    return {
        "samples": size,
        "seconds": round(middle - started, 6),
        "plain_python_seconds": round(plain_seconds, 6),
        "largest_difference": float(np.abs(advantages - reference).max()),
        "hook_seconds": round(_hook_seconds(rewards, rollout, group, advantages), 6),
    }


def _hook_seconds(rewards: Floats, rollout: Integers, group: Integers, advantages: Floats) -> float:
    columns = (rewards.tolist(), rollout.tolist(), group.tolist())
    samples = [Sample(reward=r, rollout_id=k, group_index=g) for r, k, g in zip(*columns, strict=True)]
    started = time.process_time()
    _, normalised = by_rollout(SimpleNamespace(grpo_std_normalization=True), samples)
    seconds = time.process_time() - started
    assert normalised == advantages.tolist()
    return seconds


def _plain(rewards: list[float], rollout: list[int], group: list[int]) -> list[float]:
    votes: dict[int, dict[int, float]] = {}
    for reward, rollout_id, group_index in zip(rewards, rollout, group, strict=True):
        votes.setdefault(group_index, {})[rollout_id] = reward
    advantages: dict[int, float] = {}
    for of_group in votes.values():
        mean = statistics.fmean(of_group.values())
        std = statistics.stdev(of_group.values()) if len(of_group) > 1 else 0.0
        advantages |= {k: (v - mean) / (std + STD_EPSILON) for k, v in of_group.items()}
    return [advantages[r] for r in rollout]
