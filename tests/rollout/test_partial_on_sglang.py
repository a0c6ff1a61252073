"""Partial rollouts of a real SGLang server: it aborts what runs, and the next iteration goes on from those tokens."""

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from infra.ledger import read_segment
from infra.records.rollouts import RolloutsRef, read_table
from infra.run import Run
from infra.sglang.engine import SGLangEngine
from tasks.rollout.stage import RolloutStage
from tests.rollout.conftest import prompt_rows, publish_prompts, rows_of
from tests.rollout.function_engine import BytesTokenizer

pytestmark = pytest.mark.engine

SLOTS = 16  # of each iteration
# Long answers of a random model: many are in flight when the first rollout has ended.
OVERRIDES = (
    "rollout.generate=hooks.subagents.solve_in_parts",
    "rollout.partial=mask_offpolicy",
    "rollout.max_response_tokens=96",
    "rollout.temperature=1.0",
    "rollout.concurrency=16",
)


def parts(row: int) -> dict[str, list[str]]:
    return {"parts": [f"{row}+1=", "{answer}+2="][: 1 + row % 2]}


def abort_all(url: str) -> None:
    body, headers = json.dumps({"abort_all": True}).encode(), {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/abort_request", body, headers)).read()


def iterate(run: Run, engine: SGLangEngine, iteration: int, *, abort: bool) -> RolloutsRef:
    """One iteration of the stage; the server is told to abort all that runs when the first rollout has ended."""
    told: list[threading.Thread] = []

    def progress(tokens: int) -> None:
        if abort and not told:
            told.append(threading.Thread(target=abort_all, args=(engine.url,)))
            told[0].start()

    stage = RolloutStage(run=run, model_path=run.spool, tokenizer=BytesTokenizer(), iteration=iteration)
    ref = stage.run_with(stage.slots(publish_prompts(run, prompt_rows(8, parts))), engine.client, progress)
    run.finish("rollout", iteration, ref.to_dict())
    for thread in told:
        thread.join()
    return ref


def test_what_the_server_aborted_goes_on_from_its_tokens(make_run: Callable[..., Run], engine: SGLangEngine):
    run = make_run(*OVERRIDES)
    first, second = iterate(run, engine, 0, abort=True), iterate(run, engine, 1, abort=False)
    assert first.held, "nothing was in flight when the first rollout had ended"
    calls = [c for c in read_table(run.store, first.held).to_pylist() if c["finish_reason"] == "abort"]
    assert calls and all(len(c["tokens"]) == len(c["log_probs"]) for c in calls)
    events = read_segment(run.store, run.run_id, first.ledger[0])
    assert not [e for e in events if e["event"] in ("attempt_failed", "dropped")]

    rows: list[dict[str, Any]] = [*rows_of(run, first), *rows_of(run, second)]
    assert sorted({r["index"] for r in rows}) == list(range(2 * SLOTS)), "no slot is lost, none is made twice"
    log_probs = {
        (r["rollout_id"], r["sibling"]): r["log_probs"]
        for ref in (first, second)
        for r in read_table(run.store, ref.log_probs).to_pylist()
    }
    for call in calls:
        begun = [int(token) for token in call["tokens"]]
        samples = [r for r in rows if r["index"] == call["index"]]
        whole = next(
            r for r in samples if r["tokens"][len(r["tokens"]) - r["response_length"] :][: len(begun)] == begun
        )
        assert whole["loss_mask"] == [0] * len(begun) + [1] * (whole["response_length"] - len(begun))
        assert whole["response_length"] <= 96
        assert log_probs_of(engine, whole) == pytest.approx(log_probs[whole["rollout_id"], whole["sibling"]], abs=1e-4)


def log_probs_of(engine: SGLangEngine, row: dict[str, Any]) -> list[float]:
    """What the server says of a stored response as one input: it was one answer, wherever it was interrupted."""

    async def ask() -> list[float]:
        async with engine.client() as client:
            (answer,) = await client.prefill_log_probs([(row["tokens"], row["response_length"])])
            return answer

    return asyncio.run(ask())
