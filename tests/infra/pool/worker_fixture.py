"""A GPU pool on a real Prefect server: workers that can be killed, probe runs, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State

from infra.chaos.processes import wait_until
from infra.pool.deployment import create_pool, deploy_probe
from infra.pool.orphans import ATTEMPT, RunProcess
from infra.pool.process import carrying
from infra.supervisor import supervised

LIMIT = 120.0


def ask(work: Callable[[PrefectClient], Coroutine[Any, Any, Any]]) -> Any:
    """What the server answers."""

    async def asked() -> Any:
        async with get_client() as client:
            return await work(client)

    return asyncio.run(asked())


@dataclass(frozen=True)
class Pool:
    """A pool with four logical GPUs and the probe deployed to it.

    Args:
        folder: of this pool's leases, logs and the probes' records.
    """

    name: str
    folder: Path
    deployment: UUID

    @property
    def environment(self) -> dict[str, str]:
        pool = {"FANLINE_LOGICAL_GPUS": "4", "FANLINE_LEASE_DIR": str(self.folder / "leases")}
        return {**os.environ, **pool, "FANLINE_HOME": str(self.folder), "PREFECT_WORKER_QUERY_SECONDS": "1"}

    def start_worker(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """A worker under a supervisor: the returned process."""
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", self.name, "--name", name]
        log = self.folder / f"{name}.log"
        return supervised(
            [*command, "--type", "gpu-process", *options], env=self.environment, log_path=log, grace_seconds=30
        )

    def submit(self, name: str, job_variables: dict[str, Any] | None = None, **parameters: Any) -> UUID:
        parameters = {"name": name, "record": str(self.folder), **parameters}
        run: FlowRun = ask(
            lambda client: client.create_flow_run_from_deployment(
                self.deployment, parameters=parameters, job_variables=job_variables
            )
        )
        return run.id

    def wait_started(self, name: str) -> int:
        """Until a probe holds its GPUs; its process id."""
        mark = self.folder / f"{name}.started"
        assert wait_until(lambda: mark.exists() and mark.read_text() != "", LIMIT), f"{name} did not start"
        return int(mark.read_text())

    def run(self, flow_run: UUID) -> FlowRun:
        return ask(lambda client: client.read_flow_run(flow_run))

    def process(self, flow_run: UUID) -> RunProcess:
        """The process of a started run, as its worker has written it down."""
        assert wait_until(lambda: RunProcess.read(self.run(flow_run).infrastructure_pid or "") is not None, LIMIT)
        found = RunProcess.read(self.run(flow_run).infrastructure_pid or "")
        assert found is not None
        return found

    def wait_state(self, flow_run: UUID, *names: str) -> State:
        """Until a run's state has one of these names."""

        def there() -> bool:
            state = self.run(flow_run).state
            return state is not None and state.name in names

        assert wait_until(there, LIMIT), f"{self.run(flow_run).state} is not one of {names}"
        state = self.run(flow_run).state
        assert state is not None
        return state

    def states(self, flow_run: UUID) -> list[str]:
        return [state.name for state in ask(lambda client: client.read_flow_run_states(flow_run))]


def new_pool_in(folder: Path, name: str) -> Pool:
    """A pool on the server of the settings, with the probe deployed to it."""

    async def create(client: PrefectClient) -> UUID:
        await create_pool(client, name, {"high": 1, "low": 2})
        return await deploy_probe(client, name, name, "low", {"gpus": 4})

    return Pool(name, folder, ask(create))


def left(attempt: str) -> list[int]:
    """Processes that are left of one start of a run, in whatever session."""
    return carrying(ATTEMPT, attempt)
