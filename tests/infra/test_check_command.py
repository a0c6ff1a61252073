"""`fanline check` on records that another program wrote: an independent loop in plain PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.check_command import results_of
from infra.records.sources import ModelRef
from infra.stored_run import find_stored
from tests.counter_assertion.plain_loop import PlainLoop, scenario, tiny_qwen2
from tests.counter_assertion.test_checks import DenominatorPerSample, SiblingDropped, WeightsNotSynced

ROOT = Path(__file__).parents[2]
ONE = {"iterations": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_qwen2(tmp_path_factory.mktemp("model"))


def records_of(kind: type[PlainLoop], folder: Path, model) -> Path:
    """Run the loop; its records are all that is left of it."""
    from infra.run import Run

    run = Run(run_id="theirs", scenario=scenario(rollout=ONE), store_uri=str(folder / "records"), spool=folder / "s")
    kind(run, model).go()
    return folder / "records"


def fanline_check(*arguments: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "infra.cli", "check", *arguments, "--json"]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    return ended.returncode, json.loads(ended.stdout)


def test_the_records_of_a_right_loop_pass(tmp_path, model):
    records = records_of(PlainLoop, tmp_path, model)
    code, verdict = fanline_check("--records", str(records), "--model", str(model.path))
    assert (code, verdict["verdict"]) == (0, "PASS"), verdict["message"]
    assert {c["status"] for c in verdict["checks"]} == {"pass"}


@pytest.mark.parametrize(
    ("bug", "check"),
    [(DenominatorPerSample, "loss-oracle"), (SiblingDropped, "ledger"), (WeightsNotSynced, "weight-sync")],
)
def test_a_bug_in_the_loop_is_a_regression(tmp_path, model, bug, check):
    records = records_of(bug, tmp_path, model)
    code, verdict = fanline_check("--records", str(records), "--model", str(model.path), "--only", check)
    assert (code, verdict["verdict"]) == (1, "REGRESSION")
    assert [(c["name"], c["status"]) for c in verdict["checks"]] == [(check, "fail")]


def checked_without(records: Path, model: ModelRef, *names: str) -> dict[str, tuple[str, str]]:
    for name in names:
        (records / "runs" / "theirs" / "iterations" / "0000" / name).unlink()
    run = find_stored(str(records), None)
    return {c.name: (c.status, c.reason) for c in results_of(run, [], str(model.path), summary=None)}


def test_what_is_missing_is_named_for_each_check_and_never_a_pass(tmp_path, model):
    records = records_of(PlainLoop, tmp_path, model)
    found = checked_without(records, model, "sync.json", "replay.json", "download-prompts.json")
    lacking = {name for name, (status, _) in found.items() if status == "not run"}
    assert lacking == {"weight-sync", "determinism", "rewards"}
    assert "there is no runs/theirs/iterations/0000/sync.json" in found["weight-sync"][1]
    code, verdict = fanline_check("--records", str(records), "--only", "weight-sync")
    assert (code, verdict["verdict"]) == (4, "INCONCLUSIVE")


def test_a_record_that_is_not_of_the_format_is_named(tmp_path, model):
    records = records_of(PlainLoop, tmp_path, model)
    path = records / "runs" / "theirs" / "iterations" / "0000" / "sync.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in document.items() if k != "engine_version"}))
    status, reason = checked_without(records, model)["weight-sync"]
    assert status == "not run" and "sync.json is not of record format 1: engine_version: Field required" in reason


def test_another_model_than_the_run_started_from_is_red_and_said(tmp_path, model):
    records = records_of(PlainLoop, tmp_path, model)
    code, verdict = fanline_check("--records", str(records), "--only", "loss-oracle")
    assert code == 1
    assert (
        "step 0 of iteration 0: the gradient is of another model than this: model.embed_tokens.weight"
        in verdict["message"]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"records_version": 2}, "version 2, this fanline reads version 1"),
        ({"scenario": {"name": "x"}}, "Scenario runs/theirs/run.json is not valid"),
    ],
)
def test_records_that_can_not_be_read_at_all_are_wrong_usage(tmp_path, model, change, words):
    path = tmp_path / "runs" / "theirs" / "run.json"
    path.parent.mkdir(parents=True)
    document = {"records_version": 1, "run": "theirs", "scenario": scenario().model_dump(mode="json")}
    path.write_text(json.dumps({**document, **change}))
    code, said = fanline_check("--records", str(tmp_path))
    assert code == 2 and words in said["error"]


def test_a_check_that_there_is_not_is_wrong_usage(tmp_path):
    code, said = fanline_check("--records", str(tmp_path), "--only", "everything")
    assert code == 2 and "There is no check everything" in said["error"]
