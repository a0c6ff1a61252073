"""Nights on a real server and real workers; the children are a light flow that ends as it is told."""

import os
import signal
from typing import Any

import pytest
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.states import AwaitingRetry, Cancelling, Suspended

from infra.chaos.processes import wait_until
from infra.pool.process import carrying
from tests.flows.night import awaited, children_of, create_children, ended, start_night, table_of
from tests.machine_fixture import Machine

pytestmark = pytest.mark.prefect

CHILDREN: dict[str, dict[str, Any]] = {
    "plumbing": {"ends": "PASS"},
    "red": {"ends": "REGRESSION"},
    "killed": {"ends": "kill"},
    "long": {"ends": "PASS", "seconds": 600},
    "lonely": {"ends": "kill"},
}


@pytest.fixture(scope="module", autouse=True)
def children(machine: Machine) -> None:
    create_children(machine, CHILDREN)


@pytest.fixture(scope="module")
def red_night(machine: Machine) -> Any:
    """A night with one child of each kind."""
    return ended(machine, start_night(machine, ["plumbing", "red", "killed", "absent"]))


def test_the_worst_verdict_wins_and_names_the_state(red_night: Any):
    assert red_night.state.name == "REGRESSION" and red_night.state.type.value == "FAILED"
    assert "1 of 4 scenarios passed" in red_night.state.message
    assert "red: REGRESSION: step 3 differs" in red_night.state.message
    assert "plumbing only, without signal: plumbing" in red_night.state.message


def test_the_table_has_a_line_a_scenario(machine: Machine, red_night: Any):
    table = table_of(machine, red_night.id)
    verdicts = {"plumbing": "PASS (plumbing only)", "red": "REGRESSION", "killed": "INFRA", "absent": "INFRA"}
    assert {name: row["verdict"] for name, row in table.items()} == verdicts
    assert table["red"]["run"] == "red-0123456789ab" and table["red"]["seconds"] >= 0
    assert str(children_of(machine, red_night.id)["red"].id) in table["red"]["link"]
    assert "crashed" in table["killed"]["message"]
    assert "there is no deployment" in table["absent"]["message"] and table["absent"]["seconds"] == ""


def test_a_retry_of_the_parent_runs_no_finished_child_again(machine: Machine, red_night: Any):
    before = children_of(machine, red_night.id)
    with machine.client() as client:
        client.set_flow_run_state(red_night.id, AwaitingRetry(), force=True)
    again = awaited(machine, red_night.id, lambda run: run.state.is_final() and run.run_count > red_night.run_count)
    after = children_of(machine, red_night.id)
    assert again.state.name == "REGRESSION"
    assert {name: (run.id, run.run_count) for name, run in after.items()} == {
        name: (run.id, run.run_count) for name, run in before.items()
    }


def test_a_cause_is_told_once_until_the_scenario_was_green(machine: Machine, red_night: Any):
    """The night tells what its children could not: those that were killed, or are not there."""
    assert wait_until(lambda: bool(told(machine, "killed") and told(machine, "absent")), 30)
    assert ended(machine, start_night(machine, ["absent"])).state.name == "INFRA"
    assert wait_until(lambda: len(told(machine, "absent")) == 2, 30)
    newest, oldest = told(machine, "absent")
    assert (oldest["resource"]["fanline.first"], newest["resource"]["fanline.first"]) == ("true", "false")
    assert newest["resource"]["prefect.resource.id"] == oldest["resource"]["prefect.resource.id"]
    assert not told(machine, "plumbing")


def test_a_run_that_crashes_outside_a_night_tells_it_once(machine: Machine):
    for crash in range(1, 3):
        with machine.client() as client:
            deployment = client.read_deployment_by_name("fanout-regression/lonely")
            run = client.create_flow_run_from_deployment(
                deployment.id, parameters={**deployment.parameters, "store": str(machine.home / "store")}
            )
        assert ended(machine, run.id).state.type.value == "CRASHED"
        assert wait_until(lambda crash=crash: len(told(machine, "lonely")) == crash, 30)
    newest, oldest = told(machine, "lonely")
    assert (oldest["resource"]["fanline.first"], newest["resource"]["fanline.first"]) == ("true", "false")
    assert newest["resource"]["fanline.verdict"] == "INFRA"


def told(machine: Machine, scenario: str | None = None) -> list[dict[str, Any]]:
    events = machine.events("fanline.run.red")
    return [e for e in events if scenario in (None, e["resource"]["prefect.resource.name"])]


def test_the_automation_fires_for_the_first_of_a_cause_only(machine: Machine, red_night: Any):
    def fired() -> list[str]:
        events = machine.events("prefect.automation.triggered")
        ours = [e for e in events if e["resource"]["prefect.resource.name"] == "fanline: first run of a cause"]
        return [e["payload"]["triggering_event"]["resource"]["prefect.resource.name"] for e in ours]

    assert wait_until(lambda: {"killed", "absent"} <= set(fired()), 30)
    assert sorted(set(fired())) == sorted(fired())


def test_a_stale_night_runs_nothing(machine: Machine):
    night = ended(machine, start_night(machine, ["plumbing"], late_hours=7))
    assert night.state.name == "STALE" and "7.0 h late" in night.state.message
    assert children_of(machine, night.id) == {}


def test_a_child_that_nobody_picks_up_is_infra(machine: Machine):
    with machine.client() as client:
        client.create_work_pool(WorkPoolCreate(name="nowhere", type="process"), overwrite=True)
    create_children(machine, {"waits": {"ends": "PASS"}}, pool="nowhere")
    night = ended(machine, start_night(machine, ["waits"], pick_up_minutes=0.02))
    assert night.state.name == "INFRA" and "waits: INFRA: was never picked up" in night.state.message
    assert children_of(machine, night.id)["waits"].state.name == "Cancelled"


def test_a_child_over_its_limit_is_cancelled_and_infra(machine: Machine):
    night = ended(machine, start_night(machine, ["long"], child_hours=1 / 3600))
    assert night.state.name == "INFRA" and "long: INFRA: was still running" in night.state.message
    assert children_of(machine, night.id)["long"].state.type.value == "CANCELLED"


def test_a_child_that_stays_paused_is_infra(machine: Machine):
    with machine.client() as client:
        client.create_work_pool(WorkPoolCreate(name="nowhere", type="process"), overwrite=True)
    create_children(machine, {"rests": {"ends": "PASS"}}, pool="nowhere")
    night_id = start_night(machine, ["rests"], child_hours=1 / 3600)
    awaited(machine, night_id, lambda _: bool(children_of(machine, night_id)))
    with machine.client() as client:
        client.set_flow_run_state(children_of(machine, night_id)["rests"].id, Suspended(), force=True)
    night = ended(machine, night_id)
    assert night.state.name == "INFRA" and "rests: INFRA: was still paused" in night.state.message


def running_children(machine: Machine, night_id: Any) -> bool:
    return any(run.state.type.value == "RUNNING" for run in children_of(machine, night_id).values())


def test_cancelling_the_parent_cancels_its_children(machine: Machine):
    night_id = start_night(machine, ["long"])
    awaited(machine, night_id, lambda _: running_children(machine, night_id))
    with machine.client() as client:
        client.set_flow_run_state(night_id, Cancelling())
    assert ended(machine, night_id).state.type.value == "CANCELLED"
    child = children_of(machine, night_id)["long"]
    assert ended(machine, child.id).state.type.value == "CANCELLED"
    with machine.client() as client:
        said = [state.message for state in client.read_flow_run_states(child.id)]
    assert "The night that it belongs to was cancelled." in said


def test_a_killed_parent_goes_on_with_its_children_when_it_is_retried(machine: Machine):
    night_id = start_night(machine, ["long", "plumbing"])
    run = awaited(
        machine,
        night_id,
        lambda _: len(children_of(machine, night_id)) == 2 and running_children(machine, night_id),
    )
    for pid in carrying("PREFECT__FLOW_RUN_ID", str(night_id)):
        os.kill(pid, signal.SIGKILL)
    assert ended(machine, night_id).state.type.value == "CRASHED"
    before = {name: child.id for name, child in children_of(machine, night_id).items()}
    with machine.client() as client:
        client.set_flow_run_state(night_id, AwaitingRetry(), force=True)
        client.set_flow_run_state(before["long"], Cancelling())
    again = awaited(machine, night_id, lambda now: now.state.is_final() and now.run_count > run.run_count)
    assert again.state.name == "INFRA" and "1 of 2 scenarios passed" in again.state.message
    assert {name: child.id for name, child in children_of(machine, night_id).items()} == before
