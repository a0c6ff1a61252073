"""How fast and how even a step is scheduled, beside a plain heap-based Karmarkar-Karp in Python, in one run."""

import heapq
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from infra.bench.growth import growth
from tasks.training.cost import ModelShape
from tasks.training.schedule import schedule_step

SIZES = (1_000, 10_000, 100_000, 1_000_000)
REFERENCE_UP_TO = 100_000  # samples; above, the reference takes minutes
RANKS, TOKEN_CAP = 64, 16_384
SHAPE = ModelShape(  # Qwen2.5-0.5B
    layers=24, hidden=896, heads=14, key_value_heads=2, head_dim=64, mlp=4864, vocabulary=151_936
)


def run(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Seconds of CPU time and max over mean FLOPs of a rank, log-normal lengths (median 665, sigma 1).

    The reference divides samples over ranks only: it makes no micro-batches and knows no cap.
    """
    rows = [_measure(size) for size in sizes]
    return {"ranks": RANKS, "token_cap": TOKEN_CAP, "sizes": rows, "growth": growth([row["seconds"] for row in rows])}


def _measure(size: int) -> dict[str, Any]:
    lengths = np.random.default_rng(0).lognormal(6.5, 1.0, size)
    tokens = np.clip(lengths, 1, TOKEN_CAP).astype(np.int64)
    started = time.process_time()
    schedule = schedule_step(tokens, SHAPE.forward_flops(tokens), ranks=RANKS, token_cap=TOKEN_CAP)
    row = {"samples": size, "seconds": round(time.process_time() - started, 4), **schedule.figures.to_dict()}
    return row | (_reference(SHAPE.forward_flops(tokens).tolist()) if size <= REFERENCE_UP_TO else {})


def _reference(costs: list[float]) -> dict[str, float]:
    started = time.process_time()
    sums = karmarkar_karp_sums(costs, RANKS)
    seconds = time.process_time() - started
    return {
        "karmarkar_karp_seconds": round(seconds, 4),
        "karmarkar_karp_max_over_mean_cost": max(sums) * RANKS / sum(sums),
    }


def karmarkar_karp_sums(costs: Sequence[float], parts: int) -> list[float]:
    """The parts' sums by the largest differencing method, rising, in plain Python."""
    heap = [(-c, number, [0.0] * (parts - 1) + [c]) for number, c in enumerate(costs)]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        merged = sorted(a + b for a, b in zip(first, reversed(second), strict=True))
        heapq.heappush(heap, (-(merged[-1] - merged[0]), number, merged))
        number += 1
    return heap[0][2]
