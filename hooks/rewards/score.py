"""From a sample to its reward: at once where the texts decide, else from a worker process within the time limit."""

import importlib
from functools import lru_cache
from types import ModuleType
from typing import Any

from hooks.rewards.pool import GraderFailed, WorkerPool
from hooks.sample import rollout_id_of


async def score(grader: str, args: Any, sample: Any) -> Any:
    """Reward of one sample.

    Raises:
        GraderFailed: the sample has no label, or the grader raised; names the sample.
        AnswerTimedOut: the answer took longer than `hook_options["seconds_per_answer"]`.
    """
    options = options_of(args)
    metadata = {**(sample.metadata or {}), "hook_options": options}
    answer_id = name_of(sample)
    if sample.label is None:
        raise GraderFailed(answer_id, grader, "the sample has no label")
    response, label = sample.response or "", sample.label
    settled = settle(answer_id, grader, response, label, metadata)
    if settled is not None:
        return settled
    pool = shared_pool(options.get("grading_processes", 1), options.get("seconds_per_answer", 5.0))
    return await pool.grade(answer_id, grader, response, label, metadata)


def settle(answer_id: object, grader: str, response: str, label: str, metadata: dict[str, Any]) -> Any:
    """The reward where it takes no symbolic work, else None.

    Raises:
        GraderFailed: the grader raised.
    """
    try:
        return grader_module(grader).quick(response, label, metadata)
    except Exception as error:  # whatever a grader raises becomes a report with the answer's id, never a reward
        raise GraderFailed(answer_id, grader, f"{type(error).__name__}: {error}") from error


@lru_cache
def grader_module(grader: str) -> ModuleType:
    """The module of a shipped grader: `math` -> `hooks.rewards.grade_math`."""
    return importlib.import_module(f"hooks.rewards.grade_{grader}")


@lru_cache
def shared_pool(processes: int, seconds_per_answer: float) -> WorkerPool:
    """One pool a process and setting; its workers start with the first answer and end with this process."""
    return WorkerPool(processes=processes, seconds_per_answer=seconds_per_answer)


def options_of(args: Any) -> dict[str, Any]:
    """`args.hook_options`; slime's arguments have none."""
    return dict(getattr(args, "hook_options", None) or {})


def name_of(sample: Any) -> str:
    """How errors name a sample."""
    return f"group {sample.group_index}, rollout {rollout_id_of(sample)}, index {sample.index}"
