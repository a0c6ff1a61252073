"""The children of a night: started once each, watched until each has ended, and cancelled with their parent."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import prefect.types._datetime as clock
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.runtime import flow_run as this_run

from infra.deploy.deployments import REGRESSION_FLOW
from infra.nightly.judge import Ended, judged
from infra.nightly.patience import cancel, is_final, is_in, read_patiently
from infra.records.verdict import Outcome

CANCEL_SECONDS = 60.0  # for a worker to end a run and say so


@dataclass(frozen=True, kw_only=True)
class Child:
    """A scenario and its run; without a run where it could not be started, `reason` says why."""

    scenario: str
    flow_run_id: UUID | None = None
    plumbing_only: bool = False
    reason: str = ""


def start_children(scenarios: Sequence[str], queue: str | None) -> list[Child]:
    """One run of each scenario's deployment, the same ones again when their parent is retried."""
    return [_start(name, queue, f"{this_run.get_id()}:{name}") for name in dict.fromkeys(scenarios)]


def _start(scenario: str, queue: str | None, once: str) -> Child:
    name = f"{REGRESSION_FLOW}/{scenario}"
    try:
        run: Any = run_deployment(
            name, timeout=0, as_subflow=True, idempotency_key=once, work_queue_name=queue, tags=["nightly"]
        )
    except ObjectNotFound:
        return Child(scenario=scenario, reason=f"there is no deployment {name}; `fanline deploy` creates it")
    plumbing_only = bool(run.parameters.get("scenario", {}).get("plumbing_only"))
    return Child(scenario=scenario, flow_run_id=run.id, plumbing_only=plumbing_only)


def wait_for_children(
    children: Sequence[Child], run_seconds: float, pick_up_seconds: float, poll_seconds: float
) -> list[Ended]:
    """How each child ended, in the order given; those over a limit are cancelled and count as INFRA.

    Args:
        run_seconds: longest that a child may run, and longest that it may be paused.
        pick_up_seconds: longest that a child may wait to be run while none of its siblings runs.

    Raises:
        InfraFault: the Prefect API was silent for ten minutes.
    """
    ended = {c.scenario: _not_started(c) for c in children if c.flow_run_id is None}
    waiting_since = time.monotonic()
    while open_ := [c for c in children if c.scenario not in ended]:
        runs = {c.scenario: _look(c, poll_seconds) for c in open_}
        if any(is_in(run, ("RUNNING",)) for run in runs.values()):
            waiting_since = time.monotonic()
        for child in open_:
            run = runs[child.scenario]
            if is_final(run):
                ended[child.scenario] = _read(child, run)
                waiting_since = time.monotonic()
            elif reason := _over_limit(run, run_seconds, pick_up_seconds, time.monotonic() - waiting_since):
                ended[child.scenario] = _given_up(child, run, reason, poll_seconds)
        if len(ended) < len(children):
            time.sleep(poll_seconds)
    return [ended[c.scenario] for c in children]


def cancel_children(flow: Any, flow_run: FlowRun, state: State) -> None:
    """Flow hook, which Prefect calls by these names: a cancelled night takes its unfinished children along."""
    with get_client(sync_client=True) as client:
        mine = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [str(flow_run.id)]}})
        for run in client.read_flow_runs(flow_run_filter=mine):
            if not is_final(run):
                cancel(client, run, "The night that it belongs to was cancelled.")


def _look(child: Child, poll_seconds: float) -> FlowRun:
    assert child.flow_run_id is not None
    return read_patiently(child.flow_run_id, poll_seconds, get_run_logger().warning)


def _over_limit(run: FlowRun, run_seconds: float, pick_up_seconds: float, waited_seconds: float) -> str:
    ran = run.estimated_run_time.total_seconds()
    if is_in(run, ("RUNNING",)) and ran > run_seconds:
        return f"was still running after {ran:.0f} s, the limit is {run_seconds:.0f} s"
    if is_in(run, ("PAUSED",)) and _seconds_in_state(run) > run_seconds:
        return f"was still paused, the limit is {run_seconds:.0f} s"
    if is_in(run, ("CANCELLING",)) and _seconds_in_state(run) > CANCEL_SECONDS:
        return f"was being cancelled for more than {CANCEL_SECONDS:.0f} s and did not end: its host may be down"
    if is_in(run, ("SCHEDULED", "PENDING")) and waited_seconds > pick_up_seconds:
        return f"was never picked up: no worker took it in {waited_seconds:.0f} s"
    return ""


def _seconds_in_state(run: FlowRun) -> float:
    """By the server's time stamp: a night that is retried goes on counting."""
    assert run.state is not None and run.state.timestamp is not None
    return (clock.now("UTC") - run.state.timestamp).total_seconds()


def _given_up(child: Child, run: FlowRun, reason: str, poll_seconds: float) -> Ended:
    if is_in(run, ("CANCELLING",)):
        return _ended(child, Outcome.INFRA, reason, run=run, verdict=False)  # it had its time to end
    with get_client(sync_client=True) as client:
        cancel(client, run, f"Cancelled by its night: it {reason}.")
    deadline = time.monotonic() + CANCEL_SECONDS
    while not is_final(run) and time.monotonic() < deadline:
        time.sleep(min(poll_seconds, 1.0))
        run = _look(child, poll_seconds)
    return _ended(child, Outcome.INFRA, reason, run=run, verdict=False)


def _not_started(child: Child) -> Ended:
    return _ended(child, Outcome.INFRA, child.reason, run=None, verdict=False)


def _read(child: Child, run: FlowRun) -> Ended:
    assert run.state is not None
    outcome, words, verdict = judged(run.state.type.value, str(run.state.name), run.state.message or "")
    return _ended(child, outcome, words, run=run, verdict=verdict)


def _ended(child: Child, outcome: Outcome, words: str, *, run: FlowRun | None, verdict: bool) -> Ended:
    run_id, _, rest = words.partition(": ") if verdict else ("", "", words)
    return Ended(
        scenario=child.scenario,
        outcome=outcome,
        message=rest or words,
        verdict=verdict,
        run_id=run_id or None,
        flow_run_id=str(run.id) if run else None,
        seconds=run.total_run_time.total_seconds() if run and run.start_time else None,
        plumbing_only=child.plumbing_only,
    )
