"""Reading a flow run also while the server is away for a moment."""

import time
from collections.abc import Callable
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Cancelling

from infra.errors import InfraFault

SILENT_API_SECONDS = 600.0
WAITING, BEGUN = ("SCHEDULED",), ("PENDING", "RUNNING", "PAUSED", "CANCELLING")


def read_patiently(flow_run_id: UUID, poll_seconds: float, say: Callable[[str], object]) -> FlowRun:
    """A flow run as the API has it, across a restart of the server.

    Args:
        say: gets a line when the API does not answer, once an outage.
    Raises:
        InfraFault: the API was silent for ten minutes.
    """
    deadline, told = time.monotonic() + SILENT_API_SECONDS, False
    while True:
        try:
            with get_client(sync_client=True) as client:
                return client.read_flow_run(flow_run_id)
        except (httpx.TransportError, httpx.HTTPStatusError) as cause:
            if time.monotonic() > deadline:
                raise InfraFault(
                    f"The Prefect API was silent for {SILENT_API_SECONDS:g} s: {cause}.", ids=[flow_run_id]
                ) from cause
            if not told:
                say(f"The Prefect API does not answer, looking again: {type(cause).__name__}: {cause}")
                told = True
            time.sleep(poll_seconds)


def is_in(run: FlowRun, kinds: tuple[str, ...]) -> bool:
    """Whether the run's state is of one of these types."""
    return run.state is not None and run.state.type.value in kinds


def is_final(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


def cancel(client: SyncPrefectClient, run: FlowRun, words: str) -> None:
    """Cancel a run: at once where no worker has taken it, by its worker otherwise."""
    if is_in(run, WAITING):
        client.set_flow_run_state(run.id, Cancelled(message=words), force=True)
    else:
        client.set_flow_run_state(run.id, Cancelling(message=words))
