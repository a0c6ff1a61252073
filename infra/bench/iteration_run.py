"""The process of `fanline bench iteration`: python -m infra.bench.iteration_run FOLDER KIND ROLLOUTS [RANKS]"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from infra.bench.gate import answer, wait_for_go
from infra.bench.plain_run import normalization_stage, rollout_stage, sync_stage, training_stage
from infra.bench.random_model import write_model
from infra.megatron.trainer import MegatronTrainer
from infra.records.sources import ModelRef, PromptsRef
from infra.reference_stack import reference_stack
from infra.run import Run
from infra.scenario.load import load
from infra.sglang.serving import ServingEngine
from infra.sources.host import this_host
from infra.sources.model import fetch_model
from infra.stopwatch import Stopwatch
from tasks.download.stage import publish_prompts

ITERATIONS, PUSHES = 4, 5
HOOK_PACKAGES = ("hooks", "infra.bench")
RESPONSE_TOKENS = {"cuda": 128, "cpu": 16}


def main(folder: Path, kind: Any, rollouts: int, ranks: int = 1) -> None:
    path, _ = write_model(folder / "model", kind, tokenizer=True)
    scenario = load("fanout-signal", overrides(path, kind, rollouts, ranks))
    run = Run(run_id="bench", scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")
    model = fetch_model(str(path), this_host())
    prompts = publish_prompts(run, model)
    with reference_stack(run, model, Stopwatch()) as (engine, trainer):
        wait_for_go(folder)
        rows = [Iteration(run, model, prompts, engine, trainer).measure(k) for k in range(ITERATIONS)]
        pushes = [trainer.push_weights(engine.receivers, f"again-{k}") for k in range(PUSHES)]
    later = rows[1:]  # the first compiles
    answer(
        folder,
        {
            "rollouts": rollouts,
            "ranks": ranks,
            "iterations": rows,
            "median": {name: _short(median(row[name] for row in later)) for name in later[0] if name != "free_gib"},
            "push": {
                "bytes": pushes[0].bytes,
                "tensors": pushes[0].tensors,
                "median_seconds": round(median(p.seconds for p in pushes), 4),
                "seconds": [round(p.seconds, 4) for p in pushes],
            },
        },
    )


def overrides(model: Path, kind: str, rollouts: int, ranks: int) -> list[str]:
    """`fanout-signal` at this size, one server a data-parallel rank, without what checks alone need."""
    return [
        f"model={model}",
        f"device={kind}",
        f"rollout.iterations={ITERATIONS}",
        f"rollout.prompts={rollouts // 4}",
        f"rollout.concurrency={rollouts}",
        f"rollout.max_response_tokens={RESPONSE_TOKENS[kind]}",
        "rollout.reward=infra.bench.coin.coin",
        f"training.global_batch_size={rollouts // 2}",
        f"training.data_parallel={ranks}",
        f"engine.servers={ranks}",
        f"training.max_tokens_per_gpu={16384 if kind == 'cuda' else 256}",
        "training.publish_gradients=none",
        f"engine.max_running_requests={rollouts}",
        f"engine.max_total_tokens={rollouts * 1024}",
        "engine.memory_fraction=0.7",
    ]


@dataclass(frozen=True)
class Iteration:
    """The stages of one iteration as the flow runs them, and what each of them took in seconds."""

    run: Run
    model: ModelRef
    prompts: PromptsRef
    engine: ServingEngine
    trainer: MegatronTrainer

    def measure(self, iteration: int) -> dict[str, Any]:
        """Seconds: of the whole, of the engine, of the trainer's passes, of writing its state, of all the rest.

        `outside` is what is neither engine nor trainer nor state; the stages' own times say where it goes.
        """
        run, timer, watch = self.run, Stopwatch(), GenerationWatch(self.engine)
        started = time.monotonic()
        with timer("rollout_stage"):
            generated = rollout_stage(run, self.model, self.prompts, watch.client, iteration, HOOK_PACKAGES)
        with timer("normalization_stage"):
            rollouts = normalization_stage(run, generated, HOOK_PACKAGES)
        with timer("training_stage"):
            trained = training_stage(run, self.model, rollouts, self.trainer)
        with timer("sync_stage"):
            synced = sync_stage(run, rollouts, trained, self.trainer, self.engine)
        whole, steps = time.monotonic() - started, sum(step.seconds for step in trained.steps)
        inside = watch.seconds + trained.log_probs_seconds + steps + trained.state_seconds
        figures = {
            "seconds": whole,
            "generation": watch.seconds,
            "log_probs": trained.log_probs_seconds,
            "steps": steps,
            "state": trained.state_seconds,
            "outside": whole - inside,
            "push": synced.seconds,
            "hand_over_to_trainer": sum(h.seconds for h in synced.hand_overs if h.to == "trainer"),
            "hand_over_to_engine": sum(h.seconds for h in synced.hand_overs if h.to == "engine"),
            **timer.seconds,
            "log_prob_error": synced.max_log_prob_error,
            "gradient_norm": trained.steps[0].gradient_norm,
        }
        return {
            **{name: _short(figure) for name, figure in figures.items()},
            "samples": rollouts.samples,
            "generated_tokens": generated.generated_tokens,
            "trained_tokens": sum(step.tokens for step in trained.steps),
            "free_gib": [list(h.free_gib) for h in synced.hand_overs],
        }


def _short(figure: float) -> float:
    return float(f"{figure:.4g}")


class GenerationWatch:
    """An engine's client that notes from when to when requests were in flight."""

    def __init__(self, engine: ServingEngine):
        self.engine = engine
        self.first, self.last = float("inf"), 0.0

    @property
    def seconds(self) -> float:
        return max(self.last - self.first, 0.0)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        async with self.engine.client() as client:
            yield _Watched(client, self)


class _Watched:
    def __init__(self, client: Any, watch: GenerationWatch):
        self._client, self._watch = client, watch

    async def generate(self, *args: Any, **how: Any) -> Any:
        self._watch.first = min(self._watch.first, time.monotonic())
        try:
            return await self._client.generate(*args, **how)
        finally:
            self._watch.last = time.monotonic()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
