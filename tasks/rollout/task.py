"""The rollout stage as a Prefect task: generate and grade the rollouts of one iteration."""

from __future__ import annotations

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
    from infra.sglang.engine import SGLangEngine

PROGRESS_STEPS = 20  # updates of the progress artifact: each is a request to the API


@task(
    task_run_name="generate rollouts, iteration {iteration}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=engine_was_lost,
)
def generate_rollouts(
    run: Run, model: ModelRef, prompts: PromptsRef, engine: SGLangEngine, iteration: int
) -> RolloutsRef:
    """Every prompt of an iteration through the generate hook, graded; a finished iteration is not generated again.

    An engine that went away is started again, with the current weights, before the stage is tried once more.

    Raises:
        ContractViolation: a hook did what the contract refuses, or raised.
        EngineUnavailable: the engine went away in every attempt.
    """
    from tasks.rollout.stage import RolloutStage
    from tasks.rollout.stop import load_tokenizer

    if record := run.finished("rollout", iteration):
        return RolloutsRef.from_dict(record)
    if task_run.run_count > 1 or not engine.running:
        engine.restart()
    stage = RolloutStage(
        run=run,
        model_path=model.path,
        tokenizer=load_tokenizer(model.path),
        iteration=iteration,
        hook_packages=settings().hook_packages,
    )
    slots = stage.slots(prompts)
    with shown_progress(f"rollouts, iteration {iteration}", len(slots)) as one_more:
        rollouts = stage.run_with(slots, engine.client, one_more)
    run.finish("rollout", iteration, rollouts.to_dict())
    return rollouts


@contextmanager
def shown_progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A live line in the terminal and a progress artifact in Prefect; yields what to call after each rollout."""
    artifact = create_progress_artifact(0.0, description=description)
    done = tokens = 0
    with progress(description, total) as line:

        def one_more(generated: int) -> None:
            nonlocal done, tokens
            done, tokens = done + 1, tokens + generated
            line(done)
            if done * PROGRESS_STEPS // total > (done - 1) * PROGRESS_STEPS // total:
                said = f"{description}: {done} of {total} rollouts, {tokens} tokens"
                # `_sync` is Prefect's own switch for a call from code that runs inside an event loop.
                update_progress_artifact(artifact, 100.0 * done / total, said, _sync=True)  # pyright: ignore[reportCallIssue]

        yield one_more
