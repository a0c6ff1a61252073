"""Cut the rollouts of an iteration into optimizer steps: a constant number of rollouts, whatever their fan-out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from infra.errors import FanlineError


class NoFullStep(FanlineError):
    """Fewer rollouts than one optimizer step takes: a run that trains nothing can not show a fault."""

    exit_code = 4
    verdict = "INCONCLUSIVE"


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """Which samples each step takes, and the rollouts that no step takes.

    Args:
        steps: for each step, the positions of its samples, in index order.
        rollout_ids: for each step, its `global_batch_size` rollouts in order.
        left_over: the trailing rollouts, fewer than `global_batch_size`.
    """

    steps: tuple[NDArray[np.int64], ...]
    rollout_ids: tuple[tuple[int, ...], ...]
    left_over: tuple[int, ...]


def split_steps(index: Sequence[int | None], rollout_id: Sequence[int], global_batch_size: int) -> StepSplit:
    """Steps of exactly `global_batch_size` rollouts; all siblings of a rollout are in one step.

    Rollouts go in the order in which they first occur among the samples sorted by index; siblings need not be adjacent.

    Args:
        index: [samples] slot of each sample's rollout; where any is unset, the samples keep their own order.
        rollout_id: [samples].
    Raises:
        NoFullStep: there are fewer rollouts than `global_batch_size`; names both numbers.

    Example: rollout ids 0 1 0 1, one rollout a step -> steps [0, 2] and [1, 3]
    """
    ids = np.asarray(rollout_id, np.int64)
    order = _index_order(index, len(ids))
    rollouts, first, code = np.unique(ids[order], return_index=True, return_inverse=True)
    count = len(rollouts) // global_batch_size
    if count == 0:
        raise NoFullStep(
            f"{len(rollouts)} rollouts, {global_batch_size} asked for one optimizer step: nothing can be trained.",
            next_step="Raise rollout.prompts or rollout.rollouts_per_prompt, or lower training.global_batch_size. What "
            "aborts and rollout.dynamic_filter take out of an iteration is in its ledger, with the reason.",
            ids=rollouts.tolist(),
        )
    by_occurrence = np.argsort(first)
    place = np.empty(len(rollouts), np.int64)
    place[by_occurrence] = np.arange(len(rollouts))
    step = place[code] // global_batch_size
    grouped = np.argsort(step, kind="stable")
    bounds = np.searchsorted(step[grouped], np.arange(count + 1))
    in_order = rollouts[by_occurrence].tolist()
    taken = range(0, count * global_batch_size, global_batch_size)
    return StepSplit(
        steps=tuple(order[grouped[a:b]] for a, b in pairwise(bounds)),
        rollout_ids=tuple(tuple(in_order[k : k + global_batch_size]) for k in taken),
        left_over=tuple(in_order[count * global_batch_size :]),
    )


def _index_order(index: Sequence[int | None], samples: int) -> NDArray[np.int64]:
    if any(i is None for i in index):
        return np.arange(samples)
    return np.argsort(np.asarray(index, np.int64), kind="stable")
