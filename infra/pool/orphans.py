"""Flow runs whose worker died: what is left of them is ended, and their state says so.

A run's process ends with its worker and reports that itself. When it can not, because the host went down or the process
was killed too, Prefect shows it as running for ever. Workers of the same host know better.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import anyio
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Cancelled, Crashed

from infra.ended_run import mark_ended
from infra.pool.process import ProcessIdentity, end_carrying

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun, State

ATTEMPT = "FANLINE_ATTEMPT"  # in the environment of all processes of one start of a run
UNFINISHED = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
WRITTEN_WITHIN = timedelta(seconds=10)  # a worker has written down a process before the process says that it runs
SETTLED_WITHIN = timedelta(seconds=60)  # a living worker has started, or ended, the process of a run within this


@dataclass(frozen=True, kw_only=True)
class RunProcess:
    """The process of a flow run as Prefect keeps it (`infrastructure_pid`): `process:worker:attempt`."""

    process: ProcessIdentity
    worker: ProcessIdentity
    attempt: str

    @classmethod
    def of(cls, process: ProcessIdentity, worker_pid: int, attempt: str) -> RunProcess:
        worker = ProcessIdentity.of(worker_pid)
        assert worker is not None, f"worker {worker_pid} has ended"
        return cls(process=process, worker=worker, attempt=attempt)

    @classmethod
    def read(cls, text: str) -> RunProcess | None:
        """What a run's `infrastructure_pid` says; None where another kind of worker wrote it."""
        parts = text.split(":")
        if len(parts) != 3:
            return None
        process, worker = ProcessIdentity.read(parts[0]), ProcessIdentity.read(parts[1])
        return cls(process=process, worker=worker, attempt=parts[2]) if process and worker else None

    def __str__(self) -> str:
        return f"{self.process}:{self.worker}:{self.attempt}"

    def gone(self) -> bool:
        """Whether this host can say that the process has ended."""
        return self.process.here and not self.process.alive()


async def settle_orphans(
    client: PrefectClient, pool: str, logger: logging.Logger | logging.LoggerAdapter, *, mine: Collection[UUID] = ()
) -> int:
    """Settle every run of a pool that says it goes on and whose process, of this host, is gone; returns how many.

    A worker settles its own runs; those of a worker that lives are left to it.

    Args:
        mine: runs that this process, as a worker, is busy with. One of its own beside these it could not settle, for
            instance because the server was away.
    """
    runs = await client.read_flow_runs(
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED))),
    )
    settled = 0
    for run in runs:
        if (state := _truth(run, mine)) is not None:
            with contextlib.suppress(ObjectNotFound):  # deleted meanwhile
                await client.set_flow_run_state(run.id, state, force=True)
            logger.warning("Flow run %s is %s: %s", run.name, state.name, state.message)
            if state.is_final() and "scenario" in run.parameters:
                await anyio.to_thread.run_sync(mark_ended, None, run, state)
            settled += 1
    return settled


def _truth(run: FlowRun, mine: Collection[UUID]) -> State | None:
    """The state that a run should have; None where the one it has may be right.

    A run that is started again still has its last process: what says that a process is about to start, or that a living
    worker is about to settle it, is believed for a while.
    """
    assert run.state is not None
    age = datetime.now(UTC) - run.state.timestamp
    kind, long_so = run.state.type, age >= SETTLED_WITHIN
    process = RunProcess.read(run.infrastructure_pid or "")
    if process is None:
        taken = kind == StateType.PENDING and not run.infrastructure_pid and run.start_time is None and long_so
        return AwaitingRetry(message="A worker took it and did not start it.") if taken else None
    given_up = process.worker.pid == os.getpid() and run.id not in mine
    attended = process.worker.here and process.worker.alive() and not given_up
    if not process.gone() or age < WRITTEN_WITHIN or (attended and kind == StateType.RUNNING):
        return None
    if not long_so and (kind == StateType.PENDING or attended):
        return None
    left = end_carrying(ATTEMPT, process.attempt)
    words = f"Its process {process.process} of worker {process.worker} has ended; {left} processes were left."
    if kind == StateType.CANCELLING:
        return Cancelled(message=words)
    if kind == StateType.PENDING:
        return AwaitingRetry(message=f"{words} It had not begun.")
    return Crashed(message=words)
