"""Pack samples into micro-batches under a cap: as few as the cap allows, each about as costly as the next.

The same code serves both caps: sizes are tokens under a token cap, and all 1 under a cap of samples.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
DEALT_FROM = 50_000  # items from which most of the work is done in whole rounds
SPARED = 0.2  # share of the token slots that is left to the exact rules


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def fewest_bins(sizes: Integers, cap: int) -> int:
    """A lower bound: what is longer than the cap stands alone, the rest can not be denser than full, and of two
    items above half the cap each needs a bin."""
    longer = sizes > cap
    full = int(longer.sum()) + -(-int(sizes[~longer].sum()) // cap)
    return max(full, int((2 * sizes > cap).sum()))


def pack(sizes: Integers, cost: Floats, cap: int, multiple: int, at_least: int = 1) -> tuple[Integers, int]:
    """A bin for every item, and the number of bins: a multiple of `multiple`, none empty if there are enough items.

    Args:
        sizes: [items] positive; an item larger than the cap gets a bin to itself.
        cost: [items] positive.
        at_least: fewest bins to use.
    Returns:
        ([items] bin, bins). With no more items than bins, each item is alone and the last bins are empty.
    """
    bins = round_up(max(fewest_bins(sizes, cap), at_least), multiple)
    if bins >= len(sizes):
        return np.arange(len(sizes)), bins
    if (spread := spread_by_cost(sizes, cost, cap, bins)) is not None:
        return spread, bins
    tight = best_fit_decreasing(sizes, cost, cap, bins)
    needed = round_up(int(tight.max()) + 1, multiple)
    if needed >= len(sizes):
        return np.arange(len(sizes)), needed
    spread = spread_by_cost(sizes, cost, cap, needed) if needed > bins else None
    return fill_empty(tight, cost, needed) if spread is None else spread, needed


@dataclass
class _Bins:
    """Bins that are being filled: `rest` are the items that have no bin yet, longest first."""

    size: Integers
    bin_of: Integers
    room: Integers
    load: Floats
    rest: Integers


def _begin(sizes: Integers, cost: Floats, cap: int, bins: int) -> _Bins:
    """Empty bins, or, with very many items, bins dealt nearly full in rounds: the longest to the cheapest bin."""
    size = np.minimum(sizes, cap)  # an item above the cap fills its bin
    order = np.lexsort((-cost, -size))
    state = _Bins(size, np.full(len(size), -1), np.full(bins, cap), np.zeros(bins), order)
    if len(size) < DEALT_FROM:
        return state
    for start in range(0, len(order) - bins, bins):
        block, cheapest = order[start : start + bins], np.argsort(state.load, kind="stable")
        fits = size[block] <= state.room[cheapest]
        if fits.mean() < 0.9 or state.room.mean() < SPARED * cap:
            break
        items, targets = block[fits], cheapest[fits]
        state.bin_of[items] = targets
        state.room[targets] -= size[items]
        state.load[targets] += cost[items]
    state.rest = order[state.bin_of[order] < 0]
    return state


def spread_by_cost(sizes: Integers, cost: Floats, cap: int, bins: int) -> Integers | None:
    """Longest first, each into the cheapest bin that has room for it; None where some item finds no room.

    Bins that are too full for the present size are parked and come back once sizes have shrunk enough.
    """
    state = _begin(sizes, cost, cap, bins)
    room, load, parked = state.room.tolist(), state.load.tolist(), []
    cheapest = [(c, b) for b, c in enumerate(load)]
    heapq.heapify(cheapest)
    bin_of = []
    for s, c in zip(state.size[state.rest].tolist(), cost[state.rest].tolist(), strict=True):
        while parked and -parked[0][0] >= s:
            b = heapq.heappop(parked)[1]
            heapq.heappush(cheapest, (load[b], b))
        while cheapest and room[cheapest[0][1]] < s:
            b = heapq.heappop(cheapest)[1]
            heapq.heappush(parked, (-room[b], b))
        if not cheapest:
            return None
        b = cheapest[0][1]
        room[b] -= s
        load[b] += c
        heapq.heapreplace(cheapest, (load[b], b))
        bin_of.append(b)
    state.bin_of[state.rest] = bin_of
    return state.bin_of


def best_fit_decreasing(sizes: Integers, cost: Floats, cap: int, bins: int) -> Integers:
    """Longest first, each into the fullest bin that has room for it: tight, but uneven in cost.

    Bins beyond `bins` are opened where nothing has room; bins may stay empty at the end of the numbering only.
    """
    state = _begin(sizes, cost, cap, bins)
    with_room: dict[int, list[int]] = {}
    opened = np.flatnonzero(state.room < cap)
    for b, r in zip(opened.tolist(), state.room[opened].tolist(), strict=True):
        with_room.setdefault(r, []).append(b)
    rooms = sum(1 << r for r in with_room)  # bit r is set while some bin has room r
    bin_of, used = [], len(opened)
    for s in state.size[state.rest].tolist():
        enough = rooms >> s
        if enough:
            room = s + (enough & -enough).bit_length() - 1
            b = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            b, room, used = used, cap, used + 1
        rooms |= 1 << (room - s)
        with_room.setdefault(room - s, []).append(b)
        bin_of.append(b)
    state.bin_of[state.rest] = bin_of
    return state.bin_of


def fill_empty(bin_of: Integers, cost: Floats, bins: int) -> Integers:
    """Give every empty bin half of the most costly bin that can be cut."""
    result = bin_of.copy()
    used = int(bin_of.max()) + 1
    order = np.argsort(bin_of, kind="stable")
    members = np.split(order, np.searchsorted(bin_of[order], np.arange(1, used)))
    total = np.bincount(bin_of, cost).tolist()
    heap = [(-total[b], b, items) for b, items in enumerate(members) if len(items) > 1]
    heapq.heapify(heap)
    for empty in range(used, bins):
        _, b, items = heapq.heappop(heap)
        by_cost = items[np.argsort(-cost[items], kind="stable")]
        for target, half in ((b, by_cost[::2]), (empty, by_cost[1::2])):
            result[half] = target
            if len(half) > 1:
                heapq.heappush(heap, (-cost[half].sum(), target, half))
    return result
