"""`fanline check` on records that another program wrote: a loop in plain PyTorch that imports nothing of fanline."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from infra.check_command import check_run
from infra.errors import ConfigurationError
from infra.records.format import SCHEMAS
from tests.counter_assertion import foreign_loop
from tests.counter_assertion.foreign_loop import RUN, SCENARIO, ForeignLoop, Sample, write_model

ROOT = Path(__file__).parents[2]
OTHERS = {"torch", "transformers", "pyarrow", "safetensors"}
ITERATION = Path("runs") / RUN / "iterations" / "0000"


class DenominatorPerSample(ForeignLoop):
    def denominator(self, sample: Sample, siblings: list[Sample]) -> int:
        return super().denominator(sample, [sample])


class SiblingDropped(ForeignLoop):
    def taken(self, samples: list[Sample], step: int) -> list[Sample]:
        return [s for s in super().taken(samples, step) if (s["rollout_id"], s["sibling"]) != (2, 1)]


class StaleEngine(ForeignLoop):
    def sync(self) -> None:
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def right(tmp_path_factory, model) -> Path:
    """Records of the loop without a bug; for reading only."""
    folder = tmp_path_factory.mktemp("right")
    ForeignLoop(folder, model).go()
    return folder


@pytest.fixture
def records(tmp_path, right) -> Path:
    """The same in a folder of the test's own."""
    return Path(shutil.copytree(right, tmp_path / "records"))


def fanline_check(*arguments: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "infra.cli", "check", *arguments, "--json"]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    return ended.returncode, json.loads(ended.stdout)


@pytest.fixture
def checked(capsys):
    """The same command in this process."""

    def check(records: Path, model: Path | str | None, *only: str) -> tuple[int, dict]:
        uri = None if model is None else str(model)
        code = check_run(str(records), None, only, model=uri, as_json=True, foreign=True)
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return check


def statuses(verdict: dict) -> dict[str, str]:
    return {c["name"]: c["status"] for c in verdict["checks"]}


def reason_of(verdict: dict, check: str) -> str:
    return next(c["reason"] for c in verdict["checks"] if c["name"] == check)


def test_the_loop_shares_no_code_with_the_product():
    found = set()
    for node in ast.walk(ast.parse(Path(foreign_loop.__file__).read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            found.add(node.module.split(".")[0])
        assert not isinstance(node, ast.Name) or node.id not in {"__import__", "exec", "eval"}
    assert "importlib" not in found and found - sys.stdlib_module_names == OTHERS


def test_the_records_of_a_right_loop_pass(right, model):
    code, verdict = fanline_check("--records", str(right), "--model", str(model))
    assert (code, verdict["verdict"]) == (0, "PASS"), verdict["message"]
    found = statuses(verdict)
    assert found.pop("invariance") == "not run"  # the loop trains in one shape only
    assert len(found) == 13 and set(found.values()) == {"pass"}


@pytest.mark.parametrize(
    ("bug", "checks"),
    [
        (DenominatorPerSample, {"loss-oracle"}),
        (SiblingDropped, {"ledger", "steps", "loss-oracle"}),
        (StaleEngine, {"weight-sync"}),
    ],
)
def test_a_bug_in_the_loop_is_a_regression(tmp_path, model, checked, bug, checks):
    bug(tmp_path, model).go()
    code, verdict = checked(tmp_path, model)
    assert (code, verdict["verdict"]) == (1, "REGRESSION")
    assert {name for name, status in statuses(verdict).items() if status == "fail"} == checks


def test_what_the_loop_writes_is_of_the_schemas(right):
    def valid(schema: str, document: dict) -> None:
        Draft202012Validator(json.loads((SCHEMAS / f"{schema}.schema.json").read_text())).validate(document)

    opened = json.loads((right / "runs" / RUN / "run.json").read_text())
    valid("run", opened)
    valid("scenario", opened["scenario"])
    written = {p.stem: json.loads(p.read_text()) for p in (right / ITERATION).iterdir()}
    assert sorted(written) == ["download-prompts", "replay", "reward_normalization", "rollout", "sync", "training"]
    for name, document in written.items():
        valid(name, document)
    valid("plan", json.loads((right / written["training"]["plan"]["key"]).read_text()))
    segments = [ref for document in written.values() for ref in document.get("ledger", ())]
    assert len(segments) == 3
    for line in [line for ref in segments for line in (right / ref["key"]).read_text().splitlines()]:
        valid("ledger-line", json.loads(line))
    tables = {"rollouts": written["rollout"]["table"], "log-probs": written["training"]["log_probs"]}
    for name, ref in {**tables, "prompts": written["download-prompts"]["table"]}.items():
        columns = json.loads((SCHEMAS / f"{name}.parquet.json").read_text())["columns"]
        assert {c["name"] for c in columns} <= set(pq.read_schema(right / ref["key"]).names)


def test_what_is_missing_is_named_for_each_check_and_never_a_pass(records, model, checked):
    for name in ("sync.json", "replay.json", "download-prompts.json"):
        (records / ITERATION / name).unlink()
    _, verdict = checked(records, model)
    lacking = {name for name, status in statuses(verdict).items() if status == "not run"}
    assert lacking == {"weight-sync", "determinism", "rewards", "invariance"}
    assert f"there is no runs/{RUN}/iterations/0000/sync.json" in reason_of(verdict, "weight-sync")
    code, verdict = checked(records, model, "weight-sync")
    assert (code, verdict["verdict"]) == (4, "INCONCLUSIVE")


def test_a_record_that_is_not_of_the_format_is_named(records, model, checked):
    path = records / ITERATION / "sync.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in document.items() if k != "engine_version"}))
    code, verdict = checked(records, model, "weight-sync")
    reason = reason_of(verdict, "weight-sync")
    assert code == 4 and "sync.json is not of record format 1: engine_version: Field required" in reason


def test_a_training_record_that_is_not_of_the_format_is_named(records, model, checked):
    path = records / ITERATION / "training.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in document.items() if k != "state"}))
    code, verdict = checked(records, model, "loss-oracle")
    assert code == 4 and "training.json is not of record format 1: state: Field required" in verdict["message"]


def test_records_may_hold_more_than_the_format_knows(records, model, checked):
    for path in (records / ITERATION).iterdir():
        path.write_text(json.dumps({**json.loads(path.read_text()), "host": "somewhere"}))
    assert checked(records, model, "rewards", "ledger")[0] == 0


def test_another_model_than_the_run_started_from_is_red_and_said(right, checked):
    code, verdict = checked(right, "embedded://tiny", "loss-oracle")
    assert code == 1
    words = "step 0 of iteration 0: the gradient is of another model than this: lm_head.weight is [64, 32]"
    assert words in verdict["message"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"records_version": 2}, "version 2, this fanline reads version 1"),
        ({"scenario": {"name": "x"}}, f"Scenario runs/{RUN}/run.json is not valid"),
    ],
)
def test_records_that_can_not_be_read_at_all_are_wrong_usage(tmp_path, change, words):
    path = tmp_path / "runs" / RUN / "run.json"
    path.parent.mkdir(parents=True)
    document = {"records_version": 1, "run": RUN, "scenario": SCENARIO}
    path.write_text(json.dumps({**document, **change}))
    with pytest.raises(ConfigurationError, match=words):
        check_run(str(tmp_path), None, [], model=None, as_json=True, foreign=True)


def test_a_check_that_there_is_not_is_wrong_usage(tmp_path):
    code, said = fanline_check("--records", str(tmp_path), "--only", "everything")
    assert code == 2 and "There is no check everything" in said["error"]
