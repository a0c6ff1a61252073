"""The plain heap-based Karmarkar-Karp that balancers of this kind are measured against, in Python lists."""

import heapq


def largest_part(costs: list[float], parts: int) -> float:
    """The largest sum of a division into `parts` by the largest differencing method."""
    heap = [(-c, n, [0.0] * (parts - 1) + [c]) for n, c in enumerate(costs)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        a, b = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        merged = sorted(x + y for x, y in zip(a, reversed(b), strict=True))
        heapq.heappush(heap, (-(merged[-1] - merged[0]), number, merged))
        number += 1
    return heap[0][2][-1]
