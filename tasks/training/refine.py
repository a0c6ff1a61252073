"""Even out the ranks: exchanges between the most and the least loaded rank that keep the cap and the counts."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

EVEN_ENOUGH = 1e-10  # relative to the mean load
GRID = 16_384  # pairs that are looked at one by one; above, only the neighbours of the wanted difference
NEIGHBOURS = np.arange(-2, 3)
PARTNERS = 64  # least loaded ranks that are tried before the division counts as final


class Refinement:
    """A division of items into bins and of bins into ranks, improved step by step.

    A rank's load is the sum of its items' cost. Whole bins change places, items of two bins change places, or an item
    moves to a bin with room. No bin gets above the cap or empty, every rank keeps its number of bins, and the largest
    load never grows.
    """

    def __init__(self, sizes: Integers, cost: Floats, cap: int, bin_of: Integers, rank_of: Integers, ranks: int):
        self.size, self.cost = np.minimum(sizes, cap), cost
        self.bin_of, self.rank_of = bin_of.copy(), rank_of.copy()
        bins = len(rank_of)
        self.count = np.bincount(bin_of, minlength=bins)
        self.room = cap - np.bincount(bin_of, self.size, bins).astype(np.int64)
        self.bin_cost: Floats = np.asarray(np.bincount(bin_of, cost, bins), np.float64)
        self.load: Floats = np.asarray(np.bincount(rank_of, self.bin_cost, ranks), np.float64)
        by_rank = np.argsort(rank_of[bin_of], kind="stable")
        self.items = np.split(by_rank, np.cumsum(np.bincount(rank_of[bin_of], minlength=ranks))[:-1])

    @property
    def unevenness(self) -> float:
        """The largest load over the mean load."""
        return float(self.load.max() / self.load.mean())

    def run(self) -> None:
        mean = self.load.mean()
        for _ in range(20 * len(self.load) + 200):
            most = int(self.load.argmax())
            if self.load[most] <= mean * (1 + EVEN_ENOUGH):
                return
            partners = np.argsort(self.load, kind="stable")[:PARTNERS].tolist()
            if not any(self._exchange(most, other, mean) for other in partners if other != most):
                return

    def _exchange(self, most: int, other: int, mean: float) -> bool:
        """The best exchange that lowers the larger of two loads, if there is one."""
        gap = self.load[most] - self.load[other]
        wanted = min(self.load[most] - mean, mean - self.load[other])
        wanted = wanted if wanted > 0 else gap / 2
        least = EVEN_ENOUGH * mean / 10
        options = (self._bin_swap, self._item_swap, self._move)
        found = [(abs(o[0] - wanted), k, o) for k, f in enumerate(options) if (o := f(most, other, wanted, gap, least))]
        if not found:
            return False
        _, kind, (_, *chosen) = min(found)
        (self._swap_bins, self._swap_items, self._move_item)[kind](*chosen)
        return True

    def _bin_swap(self, most: int, other: int, wanted: float, gap: float, least: float):
        ours, theirs = np.flatnonzero(self.rank_of == most), np.flatnonzero(self.rank_of == other)
        i, j, delta = _pairs(self.bin_cost[ours], self.bin_cost[theirs], wanted)
        return _best(ours[i], theirs[j], delta, (delta > least) & (delta < gap - least), wanted)

    def _item_swap(self, most: int, other: int, wanted: float, gap: float, least: float):
        ours, theirs = self.items[most], self.items[other]
        i, j, delta = _pairs(self.cost[ours], self.cost[theirs], wanted)
        i, j = ours[i], theirs[j]
        more = self.size[i] - self.size[j]
        fits = (more <= self.room[self.bin_of[j]]) & (-more <= self.room[self.bin_of[i]])
        return _best(i, j, delta, fits & (delta > least) & (delta < gap - least), wanted)

    def _move(self, most: int, other: int, wanted: float, gap: float, least: float):
        ours, bins = self.items[most], np.flatnonzero(self.rank_of == other)
        emptiest = bins[self.room[bins].argmax()]
        delta = self.cost[ours]
        fits = (self.size[ours] <= self.room[emptiest]) & (self.count[self.bin_of[ours]] > 1)
        target = np.full(len(ours), emptiest)
        return _best(ours, target, delta, fits & (delta > least) & (delta < gap - least), wanted)

    def _swap_bins(self, a: int, b: int) -> None:
        rank_a, rank_b = int(self.rank_of[a]), int(self.rank_of[b])
        in_a, in_b = self.bin_of[self.items[rank_a]] == a, self.bin_of[self.items[rank_b]] == b
        from_a, from_b = self.items[rank_a][in_a], self.items[rank_b][in_b]
        self.items[rank_a] = np.concatenate([self.items[rank_a][~in_a], from_b])
        self.items[rank_b] = np.concatenate([self.items[rank_b][~in_b], from_a])
        self.rank_of[a], self.rank_of[b] = rank_b, rank_a
        self._shift_load(rank_a, rank_b, self.bin_cost[a] - self.bin_cost[b])

    def _swap_items(self, i: int, j: int) -> None:
        a, b = self.bin_of[i], self.bin_of[j]
        self._put(i, b)
        self._put(j, a)

    def _move_item(self, i: int, target: int) -> None:
        self._put(i, target)

    def _put(self, item: int, target: int) -> None:
        source, size, cost = self.bin_of[item], self.size[item], self.cost[item]
        self.room[source] += size
        self.room[target] -= size
        self.count[source] -= 1
        self.count[target] += 1
        self.bin_cost[source] -= cost
        self.bin_cost[target] += cost
        self.bin_of[item] = target
        rank_a, rank_b = int(self.rank_of[source]), int(self.rank_of[target])
        self.items[rank_a] = self.items[rank_a][self.items[rank_a] != item]
        self.items[rank_b] = np.append(self.items[rank_b], item)
        self._shift_load(rank_a, rank_b, cost)

    def _shift_load(self, source: int, target: int, cost: float) -> None:
        self.load[source] -= cost
        self.load[target] += cost


def _pairs(a: Floats, b: Floats, wanted: float) -> tuple[Integers, Integers, Floats]:
    """Pairs (i, j) and a_i - b_j: all of them, or for each i the j around the wanted difference."""
    if len(a) * len(b) <= GRID:
        i, j = np.divmod(np.arange(len(a) * len(b)), len(b))
        return i, j, a[i] - b[j]
    order = np.argsort(b, kind="stable")
    near = np.searchsorted(b[order], a - wanted)[:, None] + NEIGHBOURS
    i, near = np.repeat(np.arange(len(a)), len(NEIGHBOURS)), near.ravel()
    inside = (near >= 0) & (near < len(b))
    i, j = i[inside], order[near[inside]]
    return i, j, a[i] - b[j]


def _best(i: Integers, j: Integers, delta: Floats, allowed: NDArray[np.bool_], wanted: float):
    """(difference, i, j) of the allowed pair that is nearest to the wanted difference, or None."""
    candidates = np.flatnonzero(allowed)
    if not len(candidates):
        return None
    k = candidates[np.abs(delta[candidates] - wanted).argmin()]
    return float(delta[k]), int(i[k]), int(j[k])
