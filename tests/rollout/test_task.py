"""The rollout stage as a Prefect task, against a real server of Prefect and, in the last test, of SGLang."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from infra.errors import ContractViolation, EngineUnavailable
from infra.ledger import read_segment
from infra.records.rollouts import RolloutsRef
from infra.records.sources import ModelRef
from infra.run import Run
from tests.rollout.conftest import prompt_rows, publish_prompts, rows_of
from tests.rollout.function_engine import FunctionEngine, FunctionServer

MODEL = Path(__file__).parents[2] / "infra" / "sources" / "embedded" / "tiny"
MakeRun = Callable[..., Run]


def generate(run: Run, engine: object, iteration: int = 0) -> RolloutsRef:
    from prefect import flow

    from tasks.rollout.task import generate_rollouts

    model = ModelRef(uri="embedded://tiny", revision="1", path=MODEL, digest="0", parameters=1)
    prompts = publish_prompts(run, prompt_rows(3))

    @flow
    def one_stage() -> RolloutsRef:
        return generate_rollouts(run, model, prompts, engine, iteration)  # type: ignore[arg-type]

    return one_stage()


@pytest.mark.prefect
def test_a_lost_engine_is_started_again_and_the_stage_goes_on(prefect: str, make_run: MakeRun):
    run = make_run()
    server = FunctionServer(engines=[FunctionEngine(dies_after=5), FunctionEngine()])
    ref = generate(run, server)
    assert server.restarts == 1 and ref.rollouts == 16
    undisturbed = generate(make_run(run_id="run-2"), FunctionServer(engines=[FunctionEngine()]))
    assert ref.table.sha256 == undisturbed.table.sha256


@pytest.mark.prefect
def test_an_engine_that_stays_away_is_given_up(prefect: str, make_run: MakeRun):
    server = FunctionServer(engines=[FunctionEngine(dies_after=0)] * 3)
    with pytest.raises(EngineUnavailable):
        generate(make_run(), server)
    assert server.restarts == 2


@pytest.mark.prefect
def test_what_a_hook_does_wrong_is_not_retried(prefect: str, make_run: MakeRun, user_hooks: Callable[[str, str], str]):
    path = user_hooks("none", "async def none(args, sample, sampling_params):\n    return None\n")
    server = FunctionServer(engines=[FunctionEngine()])
    with pytest.raises(ContractViolation, match="returned None"):
        generate(make_run(f"rollout.generate={path}"), server)
    assert server.restarts == 0


@pytest.mark.prefect
def test_a_finished_iteration_is_not_generated_again(prefect: str, make_run: MakeRun):
    run, engine = make_run(), FunctionEngine()
    first = generate(run, FunctionServer(engines=[engine]))
    asked = len(engine.requests)
    assert generate(run, FunctionServer(engines=[engine])) == first and len(engine.requests) == asked


PATIENT = """
import asyncio
import pathlib

from hooks.stock import generate

async def patient(args, sample, sampling_params):
    if sample.index == 9:
        waiting = pathlib.Path(args.hook_options["waiting"])
        while waiting.exists():
            await asyncio.sleep(0.01)
    return await generate(args, sample, sampling_params)
"""


@pytest.mark.prefect
@pytest.mark.engine
def test_a_real_server_killed_in_the_middle_changes_nothing(
    prefect: str, make_run: MakeRun, user_hooks: Callable[[str, str], str], tmp_path: Path
):
    from infra.sglang.engine import SGLangEngine

    waiting = tmp_path / "waiting"
    hook = user_hooks("patient", PATIENT)
    options = f"rollout.hook_options={json.dumps({'waiting': str(waiting)})}"
    run, again = (make_run(f"rollout.generate={hook}", options, run_id=name) for name in ("killed", "calm"))
    model = ModelRef(uri="embedded://tiny", revision="1", path=MODEL, digest="0", parameters=1)
    with SGLangEngine.for_run(run, model) as engine:
        engine.wait_ready()
        waiting.touch()
        first_server = engine.process_id
        killer = threading.Thread(target=kill_server_while_a_rollout_waits, args=(run, first_server, waiting))
        killer.start()
        ref = generate(run, engine)
        killer.join()
        assert engine.process_id != first_server
        calm = generate(again, engine)
    assert rows_of(run, ref) == rows_of(again, calm)
    events = read_segment(run.store, run.run_id, ref.ledger[0])
    assert sorted(e["index"] for e in events if e["event"] == "called") == list(range(16))
    assert len(run.store.keys("runs/killed/ledger")) == 2


def kill_server_while_a_rollout_waits(run: Run, server: int, waiting: Path) -> None:
    """SIGKILL for the server and all its children once rollout 9 is in its hook; then let that rollout go on."""

    def called(path: Path) -> bool:
        return any(e["event"] == "called" and e["index"] == 9 for e in map(json.loads, path.read_text().splitlines()))

    while not any(called(path) for path in run.spool.glob("*.rollout.*.jsonl")):
        time.sleep(0.01)
    for child in psutil.Process(server).children(recursive=True):
        os.kill(child.pid, signal.SIGKILL)
    waiting.unlink()
