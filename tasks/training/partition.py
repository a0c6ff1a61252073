"""Divide costs into parts of nearly equal sum."""

import heapq

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def karmarkar_karp(cost: Floats, parts: int, *, equal_counts: bool) -> Integers:
    """[items] part of every item, by the largest differencing method (Karmarkar and Karp, 1982) for several parts.

    Each state is a division of some items; the two states that differ most are merged, the largest part of the one with
    the smallest part of the other. With `equal_counts`, states start as one item a part, so that counts stay equal
    (the number of items is then a multiple of `parts`).
    """
    order = np.argsort(-cost, kind="stable")
    width = parts if equal_counts else 1
    states = []
    for number, start in enumerate(range(0, len(order), width)):
        sums = np.zeros(parts)
        block = order[start : start + width]
        sums[: len(block)] = cost[block]
        members = [[int(i)] for i in block] + [[] for _ in range(parts - len(block))]
        states.append((-(sums.max() - sums.min()), number, sums, members))
    heapq.heapify(states)
    number = len(states)
    while len(states) > 1:
        _, _, sums_a, members_a = heapq.heappop(states)
        _, _, sums_b, members_b = heapq.heappop(states)
        falling, rising = np.argsort(-sums_a, kind="stable"), np.argsort(sums_b, kind="stable")
        sums = sums_a[falling] + sums_b[rising]
        members = [members_a[i] + members_b[j] for i, j in zip(falling, rising, strict=True)]
        heapq.heappush(states, (-(sums.max() - sums.min()), number, sums, members))
        number += 1
    part_of = np.empty(len(cost), np.int64)
    for part, items in enumerate(states[0][3]):
        part_of[items] = part
    return part_of


def deal(cost: Floats, parts: int) -> Integers:
    """[items] part of every item: rounds of one item a part, the largest to the part that has least so far.

    The number of items is a multiple of `parts`; every part gets equally many.
    """
    order = np.argsort(-cost, kind="stable").reshape(-1, parts)
    sums, part_of = np.zeros(parts), np.empty(len(cost), np.int64)
    for block in order:
        least_first = np.argsort(sums, kind="stable")
        part_of[block] = least_first
        sums[least_first] += cost[block]
    return part_of
