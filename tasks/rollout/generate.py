"""Run the generate hook once for every slot of an iteration: bounded side by side, retried, recorded by id."""

import asyncio
import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from hooks.stock import generating_through
from infra.errors import FanlineError, HookFailed
from infra.hook_loading import Hook
from infra.ledger import LedgerWriter
from tasks.rollout.calls import Call, CallSettings, Engine, RolloutCalls, Tokenizer
from tasks.rollout.contract import Rollout, aborted_reason, siblings_of
from tasks.rollout.deadline import hook_deadline
from tasks.rollout.draw import Slot
from tasks.rollout.partial import Held

BACKOFF_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class GenerationStage:
    """What every rollout of an iteration is generated with.

    Args:
        args: the scenario as hooks see it.
        hook_of: the generate hook of a slot.
        attempts: tries of one rollout; a retry starts from the pristine sample.
        hook_seconds: longest that one try may take.
        holds_back: an aborted rollout is not tried again here: it goes on in the next iteration.
        mask_offpolicy: what a continued rollout goes on from leaves the loss.
        evaluation: what the generate hook is told in its keyword of that name, where it has one.
        progress: called after each finished or dropped rollout with the tokens it generated.
    """

    args: Any
    hook_of: Callable[[Slot], Hook]
    settings: CallSettings
    engine: Engine
    tokenizer: Tokenizer
    attempts: int
    concurrency: int
    ledger: LedgerWriter
    hook_seconds: float
    holds_back: bool = False
    mask_offpolicy: bool = False
    evaluation: bool = False
    progress: Callable[[int], None] = lambda tokens: None


@dataclass(frozen=True, kw_only=True)
class _Failed:
    reason: str
    cause: Exception | None = None
    aborted_calls: tuple[Call, ...] | None = None


async def generate_all(slots: Sequence[Slot], stage: GenerationStage) -> list[Rollout | Held]:
    """The rollouts of all slots in order of the slots; dropped ones are missing and in the ledger.

    What is held back is among them only where the stage holds back.

    The first error ends the others promptly.

    Raises:
        ContractViolation: a hook returned what the contract refuses, or raised in each of its attempts (HookFailed).
        EngineUnavailable: the engine does not answer.
    """
    made: dict[int, Rollout | Held | None] = {}
    waiting = iter(slots)

    async def take_turns() -> None:
        for slot in waiting:
            made[slot.index] = rollout = await _rollout(slot, stage)
            stage.progress(sum(len(c.tokens) for c in rollout.calls) if rollout else 0)  # with those of a record

    try:
        with _short_collections():
            async with asyncio.TaskGroup() as group:
                for _ in range(min(stage.concurrency, len(slots))):
                    group.create_task(take_turns())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    return [rollout for slot in slots if (rollout := made[slot.index])]


@contextmanager
def _short_collections() -> Iterator[None]:
    """What exists already is left out of Python's garbage collections meanwhile.

    Answers set off many of them, and each would look through all modules that are imported: 0.1 s in which no rollout
    goes on.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _rollout(slot: Slot, stage: GenerationStage) -> Rollout | Held | None:
    hook, failed = stage.hook_of(slot), _Failed(reason="no attempt was made")
    for attempt in range(1, stage.attempts + 1):
        outcome = await _attempt(slot, hook, attempt, stage)
        if isinstance(outcome, Rollout):
            return outcome
        if stage.holds_back and outcome.aborted_calls is not None:
            return Held(slot=slot, reason=outcome.reason, calls=outcome.aborted_calls)
        failed, ids = outcome, {"index": slot.index, "group_index": slot.group_index, "attempt": attempt}
        stage.ledger.write("attempt_failed", **ids, hook=hook.path, reason=failed.reason)
        if attempt < stage.attempts:
            await asyncio.sleep(BACKOFF_SECONDS * 2 ** (attempt - 1))
    if failed.cause:
        _give_up(slot, hook, stage.attempts, failed)
    stage.ledger.write("dropped", index=slot.index, group_index=slot.group_index, reason=failed.reason)
    return None


async def _attempt(slot: Slot, hook: Hook, attempt: int, stage: GenerationStage) -> Rollout | _Failed:
    calls = RolloutCalls(
        settings=stage.settings,
        index=slot.index,
        engine=stage.engine,
        tokenizer=stage.tokenizer,
        where=f"{slot.where}, hook {hook.path}",
        ids=(slot.group_index, slot.prompt_id),
        recorded=slot.recorded,
        mask_offpolicy=stage.mask_offpolicy,
    )
    ids = {"index": slot.index, "group_index": slot.group_index, "prompt_id": slot.prompt_id, "attempt": attempt}
    stage.ledger.write("called", **ids, hook=hook.path)
    keywords = {"evaluation": stage.evaluation} if hook.takes_evaluation else {}
    raised = returned = None
    try:
        with generating_through(calls):
            sample, params = copy.deepcopy(slot.sample), stage.settings.sampling_params()
            async with hook_deadline(stage.hook_seconds):
                returned = await hook.function(stage.args, sample, params, **keywords)
    except FanlineError:
        raise
    except Exception as cause:  # a hook is user code: whatever it raises is its failure, told with its ids
        raised = cause
    if calls.fault:  # also where the hook caught or wrapped it: no result of this attempt can be trusted
        raise calls.fault
    if raised:
        return _Failed(reason=f"{type(raised).__name__}: {raised}", cause=raised)
    siblings = siblings_of(returned, hook.path, slot)
    if reason := aborted_reason(siblings):
        return _Failed(reason=reason, aborted_calls=tuple(calls.log))
    return Rollout(slot=slot, hook=hook.path, attempt=attempt, siblings=siblings, calls=tuple(calls.log))


def _give_up(slot: Slot, hook: Hook, attempts: int, failed: _Failed) -> NoReturn:
    raise HookFailed(
        f"Hook {hook.path} raised in each of {attempts} attempts, for {slot.where}: {failed.reason}.",
        next_step="The traceback is in the log; mend the hook, or raise rollout.attempts if it may fail now and then.",
        ids=[slot.prompt_id, slot.group_index, slot.index],
    ) from failed.cause
