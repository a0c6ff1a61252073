"""Partial rollouts: what was aborted goes on in the next iteration from its tokens, and no call is made twice."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.sample import Sample, Status
from infra.ledger import read_segment
from infra.records.rollouts import RolloutsRef
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.scenario.load import load
from infra.store import canonical_json, sha256
from tasks.rollout.calls import Call, RolloutCalls
from tests.cases_of import case
from tests.rollout.conftest import SETTINGS, prompt_rows, rows_of, run_iteration
from tests.rollout.function_engine import BytesTokenizer, FunctionEngine

MakeRun = Callable[..., Run]
PROMPT = "1+1="
PARTS = "rollout.generate=hooks.subagents.solve_in_parts"


def parts(row: int) -> dict[str, list[str]]:
    return {"parts": [f"{row}+1=", "{answer}+2=", "{answer}+3="][: 1 + row % 3]}


def aborted(tokens: int, finish_reason: str = "abort", prompt: str = PROMPT) -> dict[tuple[str, int], Call]:
    """What is on record of an unnamed call: five tokens, say, of older weights."""
    digest = sha256(canonical_json(list(prompt.encode())))
    call = Call("", 0, 1, 100, (48,) * tokens, finish_reason, (-1.0,) * tokens, ("old",), digest)
    return {("", 0): call}


def go_on(recorded: dict[tuple[str, int], Call], engine: FunctionEngine, **parts: Any) -> tuple[Sample, RolloutCalls]:
    calls = RolloutCalls(
        settings=SETTINGS, index=0, engine=engine, tokenizer=BytesTokenizer(), recorded=recorded, **parts
    )
    return asyncio.run(calls.generate(Sample(index=0, prompt=PROMPT), {}, None)), calls


@pytest.mark.parametrize("mask_offpolicy", [True, False])
def test_an_aborted_call_goes_on_from_its_tokens_within_its_budget(mask_offpolicy: bool):
    known = case("budget-2")
    old, new = known["input"]["old tokens"], known["input"]["new tokens"]
    engine = FunctionEngine(length=new)
    sample, calls = go_on(aborted(old), engine, mask_offpolicy=mask_offpolicy)
    assert sample.loss_mask == (known["expect"]["mask"] if mask_offpolicy else [1] * (old + new))
    assert engine.requests[0]["max_new_tokens"] == SETTINGS.max_response_tokens - old
    assert engine.requests[0]["input_ids"] == [*PROMPT.encode(), *(48,) * old]
    assert (sample.response_length, sample.status) == (old + new, Status.COMPLETED)
    assert sample.rollout_log_probs is not None
    assert sample.weight_versions == ["old", "v0"] and sample.rollout_log_probs[:old] == [-1.0] * old
    (call,) = calls.log
    assert (len(call.tokens), call.weight_versions, call.asked) == (old + new, ("old", "v0"), 100)


def test_a_finished_call_is_not_asked_for_again_and_keeps_its_mask():
    engine = FunctionEngine()
    sample, _ = go_on(aborted(4, "stop"), engine, mask_offpolicy=True)
    assert engine.requests == [] and sample.loss_mask == [1] * 4 and sample.status is Status.COMPLETED


def test_a_call_with_another_input_is_made_anew():
    engine = FunctionEngine(length=3)
    sample, _ = go_on(aborted(5, "stop", prompt="2+2="), engine)
    assert engine.requests[0]["max_new_tokens"] == 100 and sample.response_length == 3


def test_an_abort_at_the_very_end_of_the_budget_is_a_truncation():
    sample, calls = go_on(aborted(100), FunctionEngine(), mask_offpolicy=True)
    assert sample.status is Status.TRUNCATED and calls.log[0].finish_reason == "length"


def test_an_answer_that_is_cut_inside_a_character_is_read_as_a_whole():
    euro = "€".encode()
    recorded = {("", 0): replace(aborted(1)["", 0], tokens=(euro[0],))}

    class Rest(FunctionEngine):
        async def generate(self, input_ids, **asked):
            made = await super().generate(input_ids, **asked)
            return replace(made, tokens=list(euro[1:]), log_probs=[-1.0, -1.0])

    assert go_on(recorded, Rest())[0].response == "€"


def events(run: Run, ref: RolloutsRef, name: str) -> list[dict]:
    return [e for e in read_segment(run.store, run.run_id, ref.ledger[0]) if e["event"] == name]


def test_the_group_of_an_aborted_rollout_is_held_back_and_goes_on(make_run: MakeRun):
    known = case("ids-10")
    run = make_run("rollout.partial=keep", "rollout.concurrency=1", "rollout.generate=hooks.stock.generate")
    kept = known["expect"]["tokens kept"]
    first = FunctionEngine(length=kept, aborts=lambda number, seed: number == 5)
    ref = run_iteration(run, prompt_rows(8), first)
    assert {r["group_index"] for r in rows_of(run, ref)} == {0, 2, 3} and ref.rollouts == 12
    held = events(run, ref, "held")
    assert [(e["index"], e["tokens"]) for e in held] == [(4, kept), (5, 1), (6, kept), (7, kept)]
    assert [e["reason"] for e in held] == [
        "waits for slot 5 of its group",
        "sibling 0 of 1 aborted",
        *["waits for slot 5 of its group"] * 2,
    ]
    assert not events(run, ref, "attempt_failed") and not events(run, ref, "dropped")
    second = FunctionEngine(length=2)
    after = run_iteration(run, prompt_rows(8), second, iteration=1)
    rows = [r for r in rows_of(run, after) if r["group_index"] == 1]
    assert [r["response_length"] for r in rows] == [kept, 1 + 2, kept, kept]
    assert len(second.requests) == 16 + known["expect"]["requeued"]
    assert {r["iteration"] for r in rows} == {1} and after.rollouts == 20
    (again,) = events(run, after, "continued")
    assert (again["group_index"], again["indices"]) == (1, [4, 5, 6, 7])
    assert RolloutsRef.from_dict(ref.to_dict()) == ref and after.held is None


def test_a_fan_out_goes_on_from_its_aborted_sibling(make_run: MakeRun):
    """The undisturbed run and the one that was aborted make the same first calls; finished ones are taken over."""
    run = make_run("rollout.partial=mask_offpolicy", "rollout.concurrency=1", PARTS)
    engine = FunctionEngine(length=3, aborts=lambda number, seed: number == 9)  # a second part of group 1
    ref = run_iteration(run, prompt_rows(8, parts), engine)
    (slot,) = [e for e in events(run, ref, "held") if "aborted" in e["reason"]]
    assert slot["reason"] == "sibling 1 of 2 aborted" and slot["group_index"] == 1
    second = FunctionEngine(length=3)
    after = run_iteration(run, prompt_rows(8, parts), second, iteration=1)
    whole = [r for r in rows_of(run, after) if r["index"] == slot["index"]]
    assert [r["loss_mask"] for r in whole] == [[1, 1, 1], [0, 1, 1, 1]]
    assert sum(r["group_index"] == 1 for r in rows_of(run, after)) == 8


def test_a_hook_that_calls_on_after_an_abort_calls_anew_once_the_answer_has_grown(make_run: MakeRun):
    run = make_run("rollout.partial=keep", "rollout.concurrency=1", PARTS)
    engine = FunctionEngine(length=3, aborts=lambda number, seed: number == 4)  # the first of two parts, in group 1
    run_iteration(run, prompt_rows(8, parts), engine)
    second = FunctionEngine(length=3)
    after = run_iteration(run, prompt_rows(8, parts), second, iteration=1)
    first, last = [r for r in rows_of(run, after) if r["index"] == 4]
    assert first["response_length"] == 4 and last["prompt"] == f"{first['response'].strip()}+2="
    expected = bytes(last["tokens"][: len(last["tokens"]) - last["response_length"]]).decode()
    assert expected == last["prompt"]


def test_the_last_iteration_tries_again_and_drops(make_run: MakeRun):
    stock = "rollout.generate=hooks.stock.generate"
    run = make_run("rollout.partial=keep", "rollout.iterations=1", "rollout.concurrency=1", stock)
    ref = run_iteration(run, prompt_rows(8), FunctionEngine(aborts=lambda number, seed: number in (5, 6)))
    assert ref.held is None and not events(run, ref, "held")
    assert [e["index"] for e in events(run, ref, "dropped")] == [5] and ref.rollouts == 15


def test_a_rollout_may_be_held_back_more_than_once(make_run: MakeRun):
    stock = "rollout.generate=hooks.stock.generate"
    run = make_run("rollout.partial=mask_offpolicy", "rollout.iterations=4", "rollout.concurrency=1", stock)
    for i in range(2):
        engine = FunctionEngine(length=9, aborts=lambda number, seed: number == 0)
        assert run_iteration(run, prompt_rows(8), engine, iteration=i).held is not None
    last = run_iteration(run, prompt_rows(8), FunctionEngine(length=2), iteration=2)
    row = next(r for r in rows_of(run, last) if r["index"] == 0)
    assert (row["response_length"], row["loss_mask"]) == (1 + 1 + 2, [0, 0, 1, 1])


@given(stops=st.sets(st.integers(0, 30), max_size=6), seed=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_no_slot_is_lost_or_made_twice_whatever_is_aborted(tmp_path_factory, stops: set[int], seed: int):
    folder = tmp_path_factory.mktemp("partial")
    overrides = [PARTS, "rollout.partial=keep", "rollout.iterations=3", f"seed={seed}", "rollout.concurrency=1"]
    run = Run(run_id="r", scenario=load("tiny", overrides), store_uri=str(folder / "store"), spool=folder / "spool")
    stored: list[int] = []
    dropped: list[int] = []
    for i in range(3):
        engine = FunctionEngine(aborts=lambda number, seed: number in stops)
        ref = run_iteration(run, prompt_rows(12, parts), engine, iteration=i)
        stored += sorted({r["index"] for r in rows_of(run, ref)})
        dropped += [e["index"] for e in events(run, ref, "dropped")]
    assert sorted(stored + dropped) == list(range(48))


def test_slimes_names():
    views = [ScenarioArgs(load("tiny", [f"rollout.partial={p}"]), "") for p in ("none", "keep", "mask_offpolicy")]
    assert [v.partial_rollout for v in views] == [False, True, True]
    assert [v.mask_offpolicy_in_partial_rollout for v in views] == [False, False, True]
