"""The rollout stage as a Prefect task: generate and grade the rollouts of one iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run

from infra.faults import engine_was_lost
from infra.progress import progress
from infra.records.rollouts import RolloutsRef
from infra.records.sources import ModelRef, PromptsRef
from infra.run import Run
from infra.settings import settings

if TYPE_CHECKING:
    from infra.sglang.serving import ServingEngine
    from tasks.rollout.stage import RolloutStage

PROGRESS_SECONDS = 5.0  # between two updates of the progress artifact: each is a request that generation waits for


@task(
    task_run_name="generate rollouts, iteration {iteration}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=engine_was_lost,
)
def generate_rollouts(
    run: Run, model: ModelRef, prompts: PromptsRef, engine: ServingEngine, iteration: int
) -> RolloutsRef:
    """Every prompt of an iteration through the generate hook, graded; a finished iteration is not generated again.

    An engine that went away is started again, with the current weights, before the stage is tried once more.

    Raises:
        ContractViolation: a hook did what the contract refuses, or raised.
        EngineUnavailable: the engine went away in every attempt.
    """
    from tasks.rollout.stage import RolloutStage

    return _finished(RolloutStage, run, model, prompts, engine, iteration)


@task(
    task_run_name="evaluate, iteration {iteration}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=engine_was_lost,
)
def evaluate(run: Run, model: ModelRef, prompts: PromptsRef, engine: ServingEngine, iteration: int) -> RolloutsRef:
    """The evaluation's own prompts through the generate hook, graded and never trained; errors as of rollouts.

    The engine holds the weights that the iteration ended with.
    """
    from tasks.rollout.evaluation import EvaluationStage, evaluated

    return _finished(EvaluationStage, evaluated(run), model, prompts, engine, iteration)


def _finished(
    kind: type[RolloutStage], run: Run, model: ModelRef, prompts: PromptsRef, engine: ServingEngine, iteration: int
) -> RolloutsRef:
    from tasks.rollout.stop import load_tokenizer

    if record := run.finished(kind.stage, iteration):
        return RolloutsRef.from_dict(record)
    if task_run.run_count > 1 or not engine.running:
        engine.restart()
    stage = kind(
        run=run,
        model_path=model.path,
        tokenizer=load_tokenizer(model.path),
        iteration=iteration,
        hook_packages=settings().hook_packages,
    )
    slots = stage.slots(prompts)
    with shown_progress(f"{kind.prefix}rollouts, iteration {iteration}", len(slots)) as one_more:
        rollouts = stage.run_with(slots, engine.client, one_more)
    run.finish(kind.stage, iteration, rollouts.to_dict())
    return rollouts


@contextmanager
def shown_progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A live line in the terminal and a progress artifact in Prefect; yields what to call after each rollout."""
    artifact = create_progress_artifact(0.0, description=description)
    done = tokens = 0
    told = time.monotonic()
    with progress(description, total) as line:

        def one_more(generated: int) -> None:
            nonlocal done, tokens, told
            done, tokens = done + 1, tokens + generated
            line(done)
            if done == total or time.monotonic() > told + PROGRESS_SECONDS:
                told = time.monotonic()
                said = f"{description}: {done} of {total} rollouts, {tokens} tokens"
                # `_sync` is Prefect's own switch for a call from code that runs inside an event loop.
                update_progress_artifact(artifact, 100.0 * done / total, said, _sync=True)  # pyright: ignore[reportCallIssue]

        yield one_more
