"""Nights over light children, on a server that a fixture has started."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.client.schemas.filters import FlowRunFilter
from prefect.states import Scheduled

from tests.flows.light_regression import ENTRYPOINT
from tests.machine_fixture import Machine

LIMIT_SECONDS = 300.0
NIGHTLY = "fanout-nightly/nightly"


def create_children(machine: Machine, children: Mapping[str, Mapping[str, Any]], pool: str = "cpu") -> None:
    """Deployments `fanout-regression/<name>` of the light flow."""
    with machine.client() as client:
        flow_id = client.create_flow_from_name("fanout-regression")
        for name, parameters in children.items():
            scenario = {"name": name, "plumbing_only": name == "plumbing"}
            client.create_deployment(
                flow_id=flow_id,
                name=name,
                entrypoint=ENTRYPOINT,
                work_pool_name=pool,
                work_queue_name="default",
                parameters={"scenario": scenario, **parameters},
            )


def start_night(machine: Machine, scenarios: list[str], *, late_hours: float = 0.0, **parameters: Any) -> Any:
    """A run of the deployed nightly over these children; returns its id."""
    with machine.client() as client:
        deployment = client.read_deployment_by_name(NIGHTLY)
        due = datetime.now(UTC) - timedelta(hours=late_hours)
        given = {"scenarios": scenarios, "queue": None, "poll_seconds": 0.5, "store": str(machine.home / "store")}
        run = client.create_flow_run_from_deployment(
            deployment.id, parameters={**given, **parameters}, state=Scheduled(scheduled_time=due)
        )
        return run.id


def read(machine: Machine, run_id: Any) -> Any:
    with machine.client() as client:
        return client.read_flow_run(run_id)


def ended(machine: Machine, run_id: Any) -> Any:
    """The run in its final state."""
    return awaited(machine, run_id, lambda run: run.state.is_final())


def awaited(machine: Machine, run_id: Any, holds: Any) -> Any:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds(run := read(machine, run_id)):
        assert time.monotonic() < deadline, run.state
        time.sleep(0.3)
    return run


def children_of(machine: Machine, run_id: Any) -> dict[str, Any]:
    """{scenario: its run} of a night; each has one."""
    with machine.client() as client:
        mine = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [str(run_id)]}})
        runs = client.read_flow_runs(flow_run_filter=mine)
    found = {run.parameters["scenario"]["name"]: run for run in runs}
    assert len(found) == len(runs), "a scenario has two runs"
    return found


def table_of(machine: Machine, run_id: Any) -> dict[str, dict[str, Any]]:
    """The night's artifact, by scenario."""
    with machine.client() as client:
        artifacts = client.request("POST", "/artifacts/filter", json={"artifacts": {"key": {"any_": ["nightly"]}}})
    mine = next(a for a in artifacts.json() if a["flow_run_id"] == str(run_id))
    return {row["scenario"]: row for row in json.loads(mine["data"])}
