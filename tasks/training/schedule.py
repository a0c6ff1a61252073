"""Give the samples of one step to ranks and micro-batches: under the cap, equally many a rank, evenly loaded.

Micro-batches are as few as the cap and the counts allow; under a token cap there is one more a rank where that makes
the ranks more even. The load of a rank is the cost of its micro-batches, which is the sum of its samples' cost: packed
sequences do not attend to each other.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.training.packing import best_fit_decreasing, fewest_bins, fill_empty, pack, spread_by_cost
from tasks.training.partition import deal, karmarkar_karp
from tasks.training.refine import Refinement

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
WORTH = 1e-3  # what the largest load has to fall by, relatively, to make another micro-batch a rank worth it
DIFFERENCING_LIMIT = 100_000  # samples * ranks up to which Karmarkar-Karp is tried as well


@dataclass(frozen=True, kw_only=True)
class ScheduleFigures:
    """How good a schedule is.

    Args:
        fewest_micro_batches: a lower bound on micro-batches of all ranks together, from sizes and cap alone.
        over_cap: samples longer than the cap; each is alone in its micro-batch.
        padding_share: share of token slots that stay empty, where a micro-batch has as many slots as the token cap, or,
            without a token cap, as the largest micro-batch has tokens.
        max_over_mean_cost: largest load of a rank over the mean load. 1 is perfectly even.
        lower_bound: no division of whole samples can have a smaller max_over_mean_cost.
    """

    micro_batches_per_rank: int
    fewest_micro_batches: int
    dummies: int
    over_cap: int
    padding_share: float
    max_over_mean_cost: float
    lower_bound: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Where every sample runs.

    Args:
        rank: [samples] data-parallel rank.
        micro_batch: [samples] number of the micro-batch within its rank.
        dummies: (rank, micro_batch, sample that is repeated with weight 0) of micro-batches without a sample.
    """

    ranks: int
    rank: Integers
    micro_batch: Integers
    dummies: tuple[tuple[int, int, int], ...]
    figures: ScheduleFigures

    def batches(self) -> Iterator[list[list[int]]]:
        """For each rank, the samples of each of its micro-batches, in order; a dummy's micro-batch is empty."""
        per_rank = self.figures.micro_batches_per_rank
        slot = self.rank * per_rank + self.micro_batch
        order = np.argsort(slot, kind="stable")
        cuts = np.searchsorted(slot[order], np.arange(1, self.ranks * per_rank))
        slots = [part.tolist() for part in np.split(order, cuts)]
        return (slots[r * per_rank : (r + 1) * per_rank] for r in range(self.ranks))


def schedule_step(
    tokens: ArrayLike,
    cost: ArrayLike,
    *,
    ranks: int,
    token_cap: int | None = None,
    micro_batch_size: int | None = None,
    group: int = 1,
) -> Schedule:
    """Ranks and micro-batches for the samples of one step. Equal input gives an equal schedule.

    Args:
        tokens: [samples] length, at least 1.
        cost: [samples] positive, of any unit: FLOPs of `ModelShape.forward_flops`, or the tokens themselves.
        ranks: data-parallel ranks.
        token_cap: largest tokens of a micro-batch (`max_tokens_per_gpu` times context-parallel ranks); a longer
            sample stands alone. Exactly one of this and `micro_batch_size` (largest samples of a micro-batch) is given.
        group: micro-batches a rank come in multiples of this (virtual pipeline stages).

    Example: 7 samples of 500, 5 x 8292, 500 tokens, 4 ranks, cap 9216 -> 2 micro-batches a rank, 1 of them a dummy
    """
    lengths, costs = np.asarray(tokens, np.int64), np.asarray(cost, np.float64)
    sizes, cap = (lengths, token_cap) if token_cap is not None else (np.ones_like(lengths), micro_batch_size)
    assert cap is not None and len(lengths), "a cap and at least one sample"
    multiple, count, shortest = ranks * group, len(lengths), int(np.argmin(costs))
    bin_of, bins = pack(sizes, costs, cap, multiple)
    missing = max(0, bins - count)
    items = np.concatenate([np.arange(count), np.full(missing, shortest)])
    bin_of = np.concatenate([bin_of, np.arange(count, count + missing)])
    best = _most_even(sizes[items], costs[items], cap, bin_of, bins, ranks)
    if token_cap is not None and not missing:
        best = _looser_if_worth_it(best, sizes, costs, cap, multiple, ranks)
    per_rank = len(best.rank_of) // ranks
    rank, micro_batch = _number(best, per_rank)
    slots = token_cap or int(np.bincount(best.bin_of, lengths[items]).max())
    return Schedule(
        ranks=ranks,
        rank=rank[:count],
        micro_batch=micro_batch[:count],
        dummies=tuple((int(rank[k]), int(micro_batch[k]), shortest) for k in range(count, len(items))),
        figures=ScheduleFigures(
            micro_batches_per_rank=per_rank,
            fewest_micro_batches=fewest_bins(sizes, cap),
            dummies=missing,
            over_cap=int((sizes > cap).sum()),
            padding_share=1 - float(np.minimum(lengths, slots).sum()) / (per_rank * ranks * slots),
            max_over_mean_cost=best.unevenness,
            lower_bound=max(1.0, float(costs.max() / best.load.mean())),
        ),
    )


def _looser_if_worth_it(
    best: Refinement, sizes: Integers, cost: Floats, cap: int, multiple: int, ranks: int
) -> Refinement:
    """More micro-batches as long as each further one a rank lowers the largest load by `WORTH`."""
    while best.unevenness > 1 + WORTH:
        bin_of, bins = pack(sizes, cost, cap, multiple, at_least=len(best.rank_of) + multiple)
        if bins > len(sizes):
            return best
        other = _most_even(sizes, cost, cap, bin_of, bins, ranks)
        if other.unevenness > best.unevenness * (1 - WORTH):
            return best
        best = other
    return best


def _most_even(sizes: Integers, cost: Floats, cap: int, bin_of: Integers, bins: int, ranks: int) -> Refinement:
    """The refined start whose largest load is smallest; every start has the same number of bins."""
    bin_cost = np.asarray(np.bincount(bin_of, cost, bins), np.float64)
    starts = [(bin_of, deal(bin_cost, ranks))]
    if len(sizes) * ranks <= DIFFERENCING_LIMIT:
        starts.append((bin_of, karmarkar_karp(bin_cost, ranks, equal_counts=True)))
        parts = [karmarkar_karp(cost, ranks, equal_counts=False)]
        if len(sizes) % ranks == 0:
            parts.append(karmarkar_karp(cost, ranks, equal_counts=True))
        starts += [s for p in parts if (s := _pack_each_rank(sizes, cost, cap, p, bins // ranks, ranks))]
    best = None
    for start in starts:
        refined = Refinement(sizes, cost, cap, *start, ranks)
        refined.run()
        if best is None or (refined.unevenness, refined.bin_cost.max()) < (best.unevenness, best.bin_cost.max()):
            best = refined
    assert best is not None
    return best


def _pack_each_rank(
    sizes: Integers, cost: Floats, cap: int, part_of: Integers, bins_per_rank: int, ranks: int
) -> tuple[Integers, Integers] | None:
    """Bins for a given division into ranks, or None where a rank's samples do not fit its bins or leave one empty."""
    bin_of = np.empty(len(sizes), np.int64)
    for rank in range(ranks):
        mine = np.flatnonzero(part_of == rank)
        if len(mine) < bins_per_rank:
            return None
        local = spread_by_cost(sizes[mine], cost[mine], cap, bins_per_rank)
        if local is None:
            tight = best_fit_decreasing(sizes[mine], cost[mine], cap, bins_per_rank)
            if tight.max() >= bins_per_rank:
                return None
            local = fill_empty(tight, cost[mine], bins_per_rank)
        bin_of[mine] = rank * bins_per_rank + local
    return bin_of, np.repeat(np.arange(ranks), bins_per_rank)


def _number(best: Refinement, per_rank: int) -> tuple[Integers, Integers]:
    """[items] rank and number of the micro-batch within it: the costliest first, so that ranks keep step."""
    order = np.lexsort((-best.bin_cost, best.rank_of))
    number = np.empty(len(order), np.int64)
    number[order] = np.tile(np.arange(per_rank), len(order) // per_rank)
    return best.rank_of[best.bin_of], number[best.bin_of]
