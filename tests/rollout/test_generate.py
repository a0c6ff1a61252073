import asyncio
import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

from hooks.sample import Sample, Status
from hooks.stock import generate
from infra.errors import ContractViolation, EngineUnavailable, HookFailed
from infra.ledger import LedgerWriter
from tasks.rollout import generate as module
from tasks.rollout.calls import seed_of
from tasks.rollout.contract import Rollout
from tasks.rollout.draw import Slot
from tasks.rollout.generate import GenerationStage, generate_all
from tests.cases_of import case
from tests.rollout.conftest import events, slot
from tests.rollout.function_engine import FunctionEngine

Stage = Callable[..., GenerationStage]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BACKOFF_SECONDS", 0.0)


def generated(slots: list[Slot], stage: GenerationStage) -> list[Rollout]:
    """What becomes of slots where the stage holds none back."""
    made = asyncio.run(generate_all(slots, stage))
    rollouts = [one for one in made if isinstance(one, Rollout)]
    assert len(rollouts) == len(made)
    return rollouts


async def plain(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    return await generate(args, sample, sampling_params)


def test_every_slot_goes_through_the_hook_once(generation: Stage, ledger: LedgerWriter):
    slots = [slot(i, per_group=2) for i in range(6)]
    rollouts = generated(slots, generation(plain, concurrency=2))
    assert [r.slot.index for r in rollouts] == list(range(6)) and {r.attempt for r in rollouts} == {1}
    called = events(ledger, "called")
    assert sorted((e["index"], e["group_index"], e["hook"]) for e in called) == [
        (i, i // 2, "hooks.plain") for i in range(6)
    ]


def test_the_result_does_not_depend_on_concurrency(generation: Stage):
    slots = [slot(i) for i in range(5)]
    slow = FunctionEngine(delay=lambda seed: seed % 5 / 2000)
    one = generated(slots, generation(plain, concurrency=1))
    many = generated(slots, generation(plain, concurrency=8, engine=slow))
    assert [r.siblings for r in one] == [r.siblings for r in many]


def test_an_exception_is_retried_from_the_pristine_sample(generation: Stage, ledger: LedgerWriter):
    seen = []

    async def fails_first(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        seen.append((copy.deepcopy(sample), dict(sampling_params)))
        sample.metadata["touched"], sampling_params["max_new_tokens"] = True, 1
        if len(seen) == 1:
            raise RuntimeError("a tool did not answer")
        return await generate(args, sample, {"max_new_tokens": 5})

    (rollout,) = generated([slot(4, group_index=2)], generation(fails_first))
    assert rollout.attempt == 2 and seen[0] == seen[1]
    assert [e["attempt"] for e in events(ledger, "called")] == [1, 2]
    (failed,) = events(ledger, "attempt_failed")
    assert failed["reason"] == "RuntimeError: a tool did not answer" and failed["index"] == 4
    assert rollout.calls[0].seed == seed_of(7, 0, 4, "", 0)


def test_a_hook_that_keeps_raising_ends_the_stage_with_the_prompts_id(generation: Stage, ledger: LedgerWriter):
    known = case("budget-4")["input"]

    async def raises_for_one(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        if sample.index == 5:
            raise KeyError("tool")
        return await generate(args, sample, sampling_params)

    slots = [slot(i) for i in range(known["prompts"])]
    with pytest.raises(HookFailed, match=r"hooks.raises_for_one raised in each of 2 .*'row-5'.*KeyError") as failure:
        asyncio.run(generate_all(slots, generation(raises_for_one)))
    assert failure.value.ids == ("row-5", 5, 5) and isinstance(failure.value.__cause__, KeyError)
    assert len(events(ledger, "attempt_failed")) == 2


def test_a_hook_that_hangs_counts_as_one_that_raised_and_is_tried_again(generation: Stage, ledger: LedgerWriter):
    async def hangs(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        if sample.index == 5:
            await asyncio.Event().wait()
        return await generate(args, sample, sampling_params)

    words = r"raised in each of 2 .*'row-5'.*it took longer than rollout.hook_deadline_seconds, 0.05 s"
    with pytest.raises(HookFailed, match=words) as failure:
        asyncio.run(generate_all([slot(5)], generation(hangs, hook_seconds=0.05)))
    assert failure.value.ids == ("row-5", 5, 5) and len(events(ledger, "attempt_failed")) == 2


def test_a_timeout_of_the_hooks_own_is_told_as_it_is(generation: Stage):
    async def raises(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        raise TimeoutError("the tool server took 3 s")

    with pytest.raises(HookFailed, match="TimeoutError: the tool server took 3 s"):
        asyncio.run(generate_all([slot(0)], generation(raises)))


@pytest.mark.parametrize("returned", [None, [], [[Sample()]]])
def test_a_refused_shape_is_not_retried(returned: Any, generation: Stage, ledger: LedgerWriter):
    async def wrong(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Any:
        return returned

    with pytest.raises(ContractViolation, match=r"hooks.wrong returned .* prompt group 3 \(prompt id 'row-3'\)"):
        asyncio.run(generate_all([slot(3)], generation(wrong)))
    assert len(events(ledger, "called")) == 1


def test_a_rollout_with_an_aborted_sibling_is_retried_as_a_whole(generation: Stage, ledger: LedgerWriter):
    async def pair(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
        sample.rollout_id = sample.index
        return [await generate(args, copy.deepcopy(sample), sampling_params, call=name) for name in "ab"]

    engine = FunctionEngine(aborts=lambda number, seed: number == 1)
    (rollout,) = generated([slot(0)], generation(pair, engine=engine))
    assert rollout.attempt == 2 and {s.status for s in rollout.siblings} <= {Status.COMPLETED, Status.TRUNCATED}
    assert [e["reason"] for e in events(ledger, "attempt_failed")] == ["sibling 1 of 2 aborted"]


def test_a_rollout_that_stays_aborted_is_dropped_with_its_reason(generation: Stage, ledger: LedgerWriter):
    engine = FunctionEngine(aborts=lambda number, seed: True)
    assert asyncio.run(generate_all([slot(2)], generation(plain, engine=engine))) == []
    (dropped,) = events(ledger, "dropped")
    assert (dropped["index"], dropped["group_index"], dropped["reason"]) == (2, 2, "sibling 0 of 1 aborted")


def test_a_lost_engine_ends_the_others_at_once(generation: Stage, ledger: LedgerWriter):
    cancelled = []

    async def waits(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        if sample.index == 2:
            return await generate(args, sample, sampling_params)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(sample.index)
        return sample

    stage = generation(waits, engine=FunctionEngine(dies_after=0))
    with pytest.raises(EngineUnavailable):
        asyncio.run(generate_all([slot(i) for i in range(3)], stage))
    assert sorted(cancelled) == [0, 1] and not events(ledger, "attempt_failed")


def test_a_hook_can_not_hide_a_lost_engine(generation: Stage):
    async def hides(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        try:
            return await generate(args, sample, sampling_params)
        except Exception:
            sample.tokens = [1]
            return sample

    with pytest.raises(EngineUnavailable):
        asyncio.run(generate_all([slot(0)], generation(hides, engine=FunctionEngine(dies_after=0))))


def test_a_lost_engine_inside_a_hooks_own_task_group_is_still_a_lost_engine(generation: Stage):
    async def parallel(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        async with asyncio.TaskGroup() as group:
            for name in "ab":
                group.create_task(generate(args, copy.deepcopy(sample), sampling_params, call=name))
        return sample

    with pytest.raises(EngineUnavailable):
        asyncio.run(generate_all([slot(0)], generation(parallel, engine=FunctionEngine(dies_after=0))))


async def long_revision(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> list[Sample]:
    draft = await generate(args, copy.deepcopy(sample), sampling_params, call="draft")
    sample.prompt = f"{sample.prompt}{'very ' * 50}{draft.response}"
    try:
        return [draft, await generate(args, sample, sampling_params, call="revise/1")]
    except ContractViolation:
        return [draft]


def test_a_prompt_that_the_engine_refuses_is_a_refusal_with_names_and_lengths(generation: Stage, ledger: LedgerWriter):
    small = FunctionEngine(context=200, length=2)
    slots = [slot(i, per_group=2) for i in (5, 6)]
    with pytest.raises(ContractViolation) as refused:
        asyncio.run(generate_all(slots, generation(long_revision, engine=small, concurrency=1)))
    message = str(refused.value)
    assert "call 'revise/1' of prompt group 2 (prompt id 'row-2'), rollout index 5, hook hooks.long_revision" in message
    assert "256 tokens of a prompt, 100 more asked for" in message and "context length" in message
    assert refused.value.ids == (2, "row-2", 5, "revise/1", 256, 100)
    assert len(events(ledger, "called")) == 1  # it is not tried again: the same prompt is refused the same way


def test_garbage_collections_are_whole_again_when_the_stage_ended(generation: Stage):
    counted: list[int] = []

    async def counts(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
        counted.append(gc.get_freeze_count())
        raise RuntimeError("no rollout")

    before = gc.get_freeze_count()
    with pytest.raises(HookFailed):
        generated([slot(0)], generation(counts))
    assert min(counted) > before
    assert gc.get_freeze_count() == before
