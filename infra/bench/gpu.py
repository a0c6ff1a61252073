"""Everything that a GPU decides, in one command: rollouts, training, weight sync and hand-over beside their floors.

What starts slowly starts together; what is measured is measured alone. On a CPU the same parts run, small.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from infra.bench import iteration, training
from infra.bench.gate import Gated
from infra.bench.random_model import write_model
from infra.bench.rollout import TOKENS, RolloutBench, server, sizes_on
from infra.environment import describe
from infra.errors import FanlineError
from infra.megatron.device import resolve
from infra.nodes import LOOPBACK
from infra.scenario.load import load
from infra.sglang.address import ServerAddress
from infra.sglang.flags import dtype_on, server_environment

TARGETS = {
    "rollouts through hooks, share of the bare client": 0.95,
    "training tokens a second": 85_000,
    "training peak GiB": 40.0,
    "weight sync, seconds": 0.10,
    "hand-over there and back, seconds": 1.5,
    "iteration outside engine and trainer, seconds": 2.0,
}


def run(sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """Every figure beside what the bare engines reach in the same call; on CUDA, which targets of an H200 were met.

    Args:
        sizes: samples at a time of the rollout part.
    Raises:
        InfraFault, EngineUnavailable: a part did not start; shows its last lines.
    """
    kind = resolve(load("tiny"))
    sizes = tuple(sizes or sizes_on(kind))
    started, marks = time.monotonic(), {}

    def mark(name: str) -> None:
        marks[name] = round(time.monotonic() - started, 1)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, vocabulary = write_model(folder / "model", kind)
        step = stack.enter_context(training.gated(folder / "training", kind))
        loop = stack.enter_context(iteration.gated(folder / "iteration", kind))
        env = server_environment(os.environ, kind, dtype_on(kind), ServerAddress(LOOPBACK, 0))
        arguments = (kind, str(model), *map(str, sizes))
        own = stack.enter_context(Gated("infra.bench.own_engine", folder / "own", *arguments, env=env))
        fast, exact = (
            stack.enter_context(server(model, kind, sizes, folder, deterministic=mode)) for mode in (False, True)
        )
        for part in (step, loop, own, fast, exact):
            part.wait_ready()
        mark("all started")
        report: dict[str, Any] = {"device": kind, "tokens": list(TOKENS[kind])}
        parts: dict[str, Callable[[], Any]] = {
            "training": step.measure,
            "sizes": lambda: RolloutBench(fast, vocabulary, TOKENS[kind], folder).rows(sizes),
            "deterministic": lambda: RolloutBench(exact, vocabulary, TOKENS[kind], folder).rows(sizes, rounds=1),
            "own_engine": own.measure,
            "iteration": loop.measure,
        }
        for name, measure in parts.items():
            try:
                report[name] = measure()
            except (FanlineError, aiohttp.ClientError) as fault:  # the other parts took minutes to start
                report.setdefault("failed", {})[name] = str(fault)
            mark(name)
    report |= {"seconds_at": marks, "versions": describe(kind).versions()}
    return report | ({"targets": targets(report)} if kind == "cuda" else {})


def targets(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By target its bound, the figure, and whether it is met; no figure of what failed or a CPU has not."""
    steps = [row for row in report.get("training", {}).get("sizes", ()) if row["form"] == "trainer"]
    loop = report.get("iteration", {})
    each = loop.get("median", {})
    figures = (
        min((row["share"] for row in report.get("sizes", ())), default=None),
        min((row["tokens_a_second"] for row in steps), default=None),
        max((row["peak_gib"] for row in steps if row["peak_gib"]), default=None),
        loop.get("push", {}).get("median_seconds"),
        (each["hand_over_to_trainer"] + each["hand_over_to_engine"] or None) if each else None,
        each.get("outside"),
    )
    at_least = list(TARGETS)[:2]
    return {
        name: {
            "bound": bound,
            "figure": figure,
            "met": figure is not None and (figure >= bound if name in at_least else figure <= bound),
        }
        for (name, bound), figure in zip(TARGETS.items(), figures, strict=True)
    }
