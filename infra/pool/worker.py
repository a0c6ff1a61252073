"""The worker of the GPU pool, work pool type `gpu-process`: flow runs as supervised processes of this host.

Prefect's own process worker starts a flow run and, when it has to, ends its process group; what the run started in
sessions of its own stays. Here `infra/supervisor.py` stands between: whatever way a run, or this worker, ends, nothing
that the run started is left. What decides over GPUs is not the worker but the lease that the run's process takes.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from prefect.flows import load_flow_from_flow_run
from prefect.runner._flow_run_executor import FlowRunExecutionResult, FlowRunExecutorContext
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.states import Failed
from prefect.utilities.processutils import command_from_string, command_to_string
from prefect.workers.process import ProcessWorker, ProcessWorkerResult

from infra import supervisor
from infra.pool.inventory import inventory
from infra.pool.orphans import ATTEMPT, RunProcess, settle_orphans
from infra.pool.process import ProcessIdentity, end_carrying
from infra.pool.worker_config import GpuJobConfiguration, GpuVariables, unfit
from infra.pool.worker_drain import Running, end_cancelled, reschedule, settle
from infra.settings import settings

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

ENGINE = command_to_string([sys.executable, "-m", "infra.pool.engine"])
GRACE_SECONDS = 6.0  # from SIGTERM, for a run to end its engine and report its state, to SIGKILL of all that is left
LOOK_SECONDS = 0.1
# How Prefect says that it could not hand a run over, and why: its server refused (SQLite is locked) or did not answer.
NOT_REACHED = re.compile(
    r"Failed to submit flow run to infrastructure: "
    r"(PrefectHTTPStatusError: Server error|\w*(Connect|Read|Write|Pool|RemoteProtocol)(Error|Timeout))"
)
LOOK_FOR_ORPHANS_SECONDS = 20.0


class GpuProcessWorker(ProcessWorker):
    """Runs flows as processes, refuses what this host can not serve, and leaves nothing behind."""

    type = "gpu-process"
    job_configuration = GpuJobConfiguration
    job_configuration_variables = GpuVariables
    _display_name = "GPU process"
    _description = "Flow runs as supervised processes of a GPU host; each leases its GPUs for as long as it needs them."
    _documentation_url = ""
    _logo_url = ""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.running: dict[Any, Running] = {}
        self.draining = False
        self._looked = -LOOK_FOR_ORPHANS_SECONDS

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """As Prefect's; SIGTERM and SIGINT drain: no new runs, and those that do not end in time are rescheduled."""
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main is not None
        drains: list[asyncio.Task[None]] = []

        def asked_to_end() -> None:
            if drains:
                main.cancel()  # a second time: at once
            else:
                drains.append(loop.create_task(self._drain(main)))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked_to_end)
        await super().start(*args, **kwargs)

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Take what is due; now and then look for runs whose worker died, also those of a worker before this one."""
        if self.draining:
            return []
        if time.monotonic() - self._looked >= LOOK_FOR_ORPHANS_SECONDS and self._work_pool is not None:
            self._looked = time.monotonic()
            await settle_orphans(self.client, self._work_pool_name, self._logger, mine=[*self.running])
            await end_cancelled(self.client, self.running)
        return await super().get_and_submit_flow_runs()

    async def run(  # type: ignore[override]
        self,
        flow_run: FlowRun,
        configuration: GpuJobConfiguration,
        task_status: anyio.abc.TaskStatus[Any] = anyio.TASK_STATUS_IGNORED,
    ) -> ProcessWorkerResult:
        """Start a flow run under a supervisor, wait for its end, and see to it that its state says how it ended."""
        refusal = configuration.refusal() or unfit(configuration.wanted(), configuration.gpus, inventory(settings()))
        if refusal:
            return await self._refuse(flow_run, refusal, task_status)
        attempt = secrets.token_hex(8)
        configuration.env |= {ATTEMPT: attempt, "FANLINE_POOL": self._work_pool_name}
        configuration.env["FANLINE_LEASE_PRIORITY"] = str(await self._priority(flow_run))
        try:
            result = await self._execute(flow_run, configuration, attempt, task_status)
        finally:
            # The supervisor has ended all; this is for the case that it was itself killed.
            end_carrying(ATTEMPT, attempt)
            entry = self.running.get(flow_run.id)
            with anyio.CancelScope(shield=True):
                await settle(self.client, flow_run.id, rescheduled=entry is not None and entry.rescheduled)
            self.running.pop(flow_run.id, None)
        if entry is not None and entry.rescheduled:
            return ProcessWorkerResult(status_code=0, identifier=result.identifier)  # else Prefect calls it crashed
        return result

    async def _propose_crashed_state(self, flow_run: FlowRun, message: str, client: Any = None) -> None:
        """As Prefect's, but a run that was not started because the server was busy or away is no crash.

        It stays Pending, and `settle_orphans` puts it back on the schedule: no run is lost.
        """
        if NOT_REACHED.search(message) is None:
            await super()._propose_crashed_state(flow_run, message, client)

    async def _execute(
        self,
        flow_run: FlowRun,
        configuration: GpuJobConfiguration,
        attempt: str,
        task_status: anyio.abc.TaskStatus[Any],
    ) -> ProcessWorkerResult:
        # The kernel tells a supervisor of its parent's death when the THREAD that started it ends.
        assert threading.current_thread() is threading.main_thread(), "the worker starts runs from its main thread"
        ended: list[FlowRunExecutionResult | None] = []
        with tempfile.TemporaryDirectory(prefix="fanline-run-") as folder:
            async with FlowRunExecutorContext() as context:
                starter = EngineCommandStarter(
                    command=supervised(_command(configuration)),
                    cwd=configuration.working_dir or Path(folder),
                    env=configuration.env,
                    stream_output=configuration.stream_output,
                    control_channel=context.control_channel,
                    isolate_process_group=True,
                    env_overrides_settings=True,
                )
                executor = context.create_executor(
                    flow_run, starter, resolve_flow=load_flow_from_flow_run, propose_submitting=False
                )

                async def execute(*, task_status: anyio.abc.TaskStatus[Any]) -> None:
                    ended.append(await executor.submit(task_status=task_status))

                async with anyio.create_task_group() as group:
                    handle = await group.start(execute)
                    process = ProcessIdentity.of(handle.pid)
                    self.running[flow_run.id] = Running(handle=handle, control=context.control_channel)
                    task_status.started(str(RunProcess.of(process, os.getpid(), attempt)) if process else "ended")
        result = ended[0]
        assert result is not None, f"flow run {flow_run.id} ended without a result"
        return ProcessWorkerResult(status_code=result.status_code or 0, identifier=str(result.handle.pid))

    async def _refuse(
        self, flow_run: FlowRun, words: str, task_status: anyio.abc.TaskStatus[Any]
    ) -> ProcessWorkerResult:
        """End a run that this host can not serve, with both numbers in its state."""
        self.get_flow_run_logger(flow_run).error("Refused: %s", words)
        await self.client.set_flow_run_state(flow_run.id, Failed(name="Refused", message=words), force=True)
        task_status.started("refused")
        return ProcessWorkerResult(status_code=0, identifier="refused")

    async def _priority(self, flow_run: FlowRun) -> int:
        """The priority of the run's work queue, 1 first: also its place in the line for GPUs."""
        if flow_run.work_queue_id is None:
            return settings().lease_priority
        return (await self.client.read_work_queue(flow_run.work_queue_id)).priority or settings().lease_priority

    async def _drain(self, main: asyncio.Task[Any]) -> None:
        self.draining = True
        seconds = settings().drain_seconds
        self._logger.info("Asked to end: %d runs have %g s, then they are rescheduled.", len(self.running), seconds)
        deadline = time.monotonic() + seconds
        while self.running or self._submitting_flow_run_ids:  # those that are being started come to `running` yet
            if time.monotonic() >= deadline:
                for flow_run_id in [i for i, entry in self.running.items() if not entry.rescheduled]:
                    await reschedule(flow_run_id, self.running[flow_run_id])
            await asyncio.sleep(LOOK_SECONDS)
        main.cancel()


def _command(configuration: GpuJobConfiguration) -> str:
    """What runs the flow: the deployment's own command where it has one."""
    given = configuration.command if configuration._command_configured else None
    return given or ENGINE


def supervised(command: str) -> str:
    """The command line of a flow run's process under a supervisor that ends with this process, or before it."""
    supervise = [sys.executable, "-I", "-S", str(Path(supervisor.__file__).resolve())]
    options = ["--grace", str(GRACE_SECONDS), "--parent", str(os.getpid()), "--"]
    return command_to_string([*supervise, *options, *command_from_string(command)])
