"""The real flow as a deployment on the GPU pool of a machine that is up."""

import json

import pytest

from infra.chaos.processes import wait_until
from infra.store import ArtifactStore
from tests.flows.night import read
from tests.machine_fixture import Machine

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
