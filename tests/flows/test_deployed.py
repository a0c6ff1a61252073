"""The real flow as a deployment on the GPU pool of a machine that is up."""

import json
import shutil
from pathlib import Path

import pytest

from infra import open_run
from infra.chaos.processes import wait_until
from infra.store import ArtifactStore
from tests.flows.night import read
from tests.infra.deploy.workflow import arguments
from tests.machine_fixture import ROOT, Machine

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.trainer, pytest.mark.prefect]

HOOK = "tests.flows.user_hooks.returns_none"


def test_a_red_run_of_a_deployment_tells_its_cause_and_leaves_its_report(machine: Machine):
    done = machine.fanline("trigger", "tiny", "--set", f"rollout.generate={HOOK}", "--timeout", "1200", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["verdict"]) == (1, "REGRESSION"), done.stderr
    assert HOOK in said["message"]
    assert read(machine, said["flow_run"]).state.name == "REGRESSION"

    # The store is the one that the block names, wherever the run's process was started.
    run_id = said["message"].split(":")[0]
    store = ArtifactStore(str(machine.home / "store"))
    assert store.keys(f"runs/{run_id}/attempts") and store.keys("notices/tiny")

    def told() -> list[dict[str, str]]:
        events = [e["resource"] for e in machine.events("fanline.run.red")]
        return [e for e in events if e["prefect.resource.name"] == "tiny" and "contract" in e["fanline.checks"]]

    assert wait_until(lambda: [e["fanline.first"] for e in told()] == ["true"], 30)


def test_the_workflow_of_a_pull_request_runs_its_code_and_ends_with_its_verdict(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder in ("flows", "tasks", "hooks", "infra"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "infra" / "store.py").open("a") as file:
        file.write("# what the pull request changes\n")
    done = machine.fanline(*arguments("tiny", tmp_path), "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["verdict"]) == (0, "PASS"), done.stderr
    assert {"0123abcd", "pr-7"} <= set(read(machine, said["flow_run"]).tags)

    run_id = said["message"].split(":")[0]
    opened = ArtifactStore(str(machine.home / "store")).read_json(f"runs/{run_id}/run.json")
    here = open_run.code_digest()
    monkeypatch.setattr(open_run, "ROOT", tmp_path)
    assert opened["code_digest"] == open_run.code_digest() != here
