"""Runs of a worker that is asked to end, and the state of a run whose process is gone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.states import AwaitingRetry, Cancelled, Crashed

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.runner._control_channel import ControlChannel
    from prefect.runner._process_manager import ProcessHandle

RESCHEDULED = "Its worker was asked to end: it goes on after its last finished stage as soon as a worker takes it."
FORGOTTEN_SECONDS = 10.0  # after a cancel: the observer has acted by then
VANISHED = "Its process has ended and did not say how."


@dataclass
class Running:
    """A flow run's process as its worker knows it.

    Args:
        rescheduled: whether it is ended only to go on elsewhere.
    """

    handle: ProcessHandle
    control: ControlChannel
    rescheduled: bool = False


async def reschedule(flow_run_id: UUID, entry: Running) -> None:
    """Ask a run to end without a verdict on itself; `settle` puts it back on the schedule when it has."""
    entry.rescheduled = True
    await entry.control.signal(flow_run_id, "reschedule")
    if entry.handle.is_alive():
        entry.handle.termination_scope.graceful_kill(entry.handle.pid or 0)


async def end_cancelled(client: PrefectClient, running: dict[UUID, Running]) -> None:
    """End runs that were cancelled a while ago and still go on.

    Prefect's own observer of cancellations gives up for good when the server was away, and a run that it forgot could
    not be cancelled any more.
    """
    for flow_run_id, entry in list(running.items()):
        state = (await client.read_flow_run(flow_run_id)).state
        if state is None or state.type != StateType.CANCELLING or not entry.handle.is_alive():
            continue
        if datetime.now(UTC) - state.timestamp > timedelta(seconds=FORGOTTEN_SECONDS):
            await entry.control.signal(flow_run_id, "cancel")
            entry.handle.termination_scope.graceful_kill(entry.handle.pid or 0)


async def settle(client: PrefectClient, flow_run_id: UUID, *, rescheduled: bool) -> None:
    """Correct a state that says that a run goes on, after its process and everything of it has ended."""
    state = (await client.read_flow_run(flow_run_id)).state
    assert state is not None, f"flow run {flow_run_id} has no state"
    if state.type == StateType.CANCELLING:
        wanted: Any = Cancelled(message="Its process and all that it started have ended.")
    elif rescheduled and (state.type in (StateType.RUNNING, StateType.PENDING) or state.is_crashed()):
        wanted = AwaitingRetry(message=RESCHEDULED)
    elif state.type in (StateType.RUNNING, StateType.PENDING):
        wanted = Crashed(message=VANISHED)
    else:
        return
    await client.set_flow_run_state(flow_run_id, wanted, force=True)
