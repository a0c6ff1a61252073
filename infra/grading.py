"""Grading many answers outside of a hook: checks that grade stored answers again, and the bench."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from hooks.rewards.pool import GradingError, WorkerPool
from hooks.rewards.score import settle
from infra.errors import HookFailed


class GradingFailed(HookFailed):
    """An answer could not be graded: its grader raised, died, or ran into the time limit. `ids` holds its id."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to grade. `id` is what errors name; `grader` one of `hooks.rewards.GRADERS`."""

    id: object
    grader: str
    response: str
    label: Any
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What became of an answer: a reward, or the error that stands for it (never both, never neither)."""

    id: object
    reward: float | dict[str, Any] | None
    error: GradingFailed | None


class GradingPool:
    """Grades with the same code as the reward hooks: at once where the texts decide, else in worker processes.

    Example:
        with GradingPool(processes=2, seconds_per_answer=5) as pool:
            grades = await pool.grade_many(answers)
    """

    def __init__(self, *, processes: int = 1, seconds_per_answer: float = 5.0):
        self._workers = WorkerPool(processes=processes, seconds_per_answer=seconds_per_answer)

    async def grade(
        self, id: object, grader: str, response: str, label: Any, metadata: dict[str, Any] | None = None
    ) -> float | dict[str, Any]:
        """The reward of one answer.

        Raises:
            GradingFailed: with the answer's id.
        """
        answer = Answer(id=id, grader=grader, response=response, label=label, metadata=metadata or {})
        [grade] = await self.grade_many([answer])
        if grade.error:
            raise grade.error
        assert grade.reward is not None
        return grade.reward

    async def grade_many(self, answers: Sequence[Answer]) -> list[Grade]:
        """[answers] one grade an answer, in their order; errors are returned, so that one bad answer hides no other."""
        begun = [self._begin(answer) for answer in answers]
        return [each if isinstance(each, Grade) else await _result(*each) for each in begun]

    def close(self) -> None:
        """Finish what was submitted and end the workers."""
        self._workers.close()

    def __enter__(self) -> "GradingPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, answer: Answer) -> "Grade | tuple[object, Future[float | dict[str, Any]]]":
        """The grade where the texts decide, else the answer's id and the worker's promise."""
        parts = (answer.id, answer.grader, answer.response, answer.label, answer.metadata)
        try:
            reward = settle(*parts)
        except GradingError as error:
            return _failed(error)
        if reward is not None:
            return Grade(id=answer.id, reward=reward, error=None)
        return answer.id, self._workers.submit(*parts)


async def _result(id: object, promise: "Future[float | dict[str, Any]]") -> Grade:
    try:
        return Grade(id=id, reward=await asyncio.wrap_future(promise), error=None)
    except GradingError as error:
        return _failed(error)


def _failed(error: GradingError) -> Grade:
    next_step = "Look at the answer in the stored rollouts, or raise rollout.hook_options.seconds_per_answer."
    failure = GradingFailed(str(error) + ".", next_step=next_step, ids=(error.answer_id,))
    return Grade(id=error.answer_id, reward=None, error=failure)
