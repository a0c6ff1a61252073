"""How a run is started, waited for and gone on with: by the command line, or as a flow run of the GPU pool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from infra.chaos.services import PrefectServer
from infra.errors import InfraFault
from infra.supervisor import die_with_parent, stop, supervised

ROOT = Path(__file__).resolve().parents[2]
SCENARIO, OFF = "tiny", ("determinism", "invariance")
RUN_SECONDS = 600.0
LOOK_SECONDS = 0.3
ASK_SECONDS = 2.0  # each time is a request to the server
WORKER = "worker start"
POOL, POOL_TYPE = "gpu-4", "gpu-process"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One row's surroundings: FANLINE_HOME of the run, the Prefect server, and its store's service."""

    home: Path
    prefect: PrefectServer
    store: Any

    @property
    def environment(self) -> dict[str, str]:
        """Of a process of the run."""
        own = {"FANLINE_HOME": str(self.home), "FANLINE_STORE": self.store.store.uri}
        return {**os.environ, **self.store.environment, **own, "PREFECT_API_URL": self.prefect.url}


class Launched(Protocol):
    """A run that was started as a person would."""

    def is_over(self) -> bool:
        """Whether it has ended."""
        ...

    def summary(self) -> dict[str, Any] | None:
        """Wait for its end: what it said then, its state as the verdict where it has none; None where it was killed."""
        ...

    def resumed(self, run_id: str) -> dict[str, Any] | None:
        """Go on with it: what it said at its end."""
        ...

    def keeps(self, command: str) -> bool:
        """Whether a process belongs to the surroundings and stays when the run has ended."""
        ...

    def close(self) -> None:
        """End it, and what it was started by."""
        ...


class CommandRun:
    """`fanline run … --json`."""

    def __init__(self, scene: Scene):
        self.scene = scene
        self.process = self._start()

    def _start(self, *more: str) -> subprocess.Popen[str]:
        off = [word for field in OFF for word in ("--set", f"checks.{field}=false")]
        command = [sys.executable, "-m", "infra.cli", "run", SCENARIO, *off, *more, "--json"]
        with (self.scene.home / "errors.log").open("a") as errors:
            # No supervisor: what a run leaves behind has to show. It only must not outlive the chaos it is part of.
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.scene.environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def summary(self) -> dict[str, Any] | None:
        output, _ = self.process.communicate(timeout=RUN_SECONDS)
        return json.loads(output) if output.strip() else None

    def resumed(self, run_id: str) -> dict[str, Any] | None:
        self.process = self._start("--resume", run_id)
        return self.summary()

    def keeps(self, command: str) -> bool:
        return False

    def close(self) -> None:
        self.process.kill()


class PoolRun:
    """A flow run of `fanout-regression/tiny`, and the worker that serves its pool."""

    def __init__(self, scene: Scene):
        self.scene = scene
        self._deploy()
        self.worker = self.start_worker()
        with self._client() as client:
            deployment = client.read_deployment_by_name(f"fanout-regression/{SCENARIO}")
            scenario = dict(deployment.parameters["scenario"])
            scenario["checks"] = {**scenario.get("checks", {}), **dict.fromkeys(OFF, False)}
            run = client.create_flow_run_from_deployment(deployment.id, parameters={"scenario": scenario})
        self.flow_run, self.runs_before = run.id, 0
        self._looked, self._over = 0.0, False

    def _deploy(self) -> None:
        command = [sys.executable, "-m", "infra.cli", "deploy", "--store", self.scene.store.store.uri]
        done = subprocess.run(
            command, cwd=ROOT, env=self.scene.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise InfraFault(f"`fanline deploy` ended with {done.returncode}: {done.stderr[-300:]}")

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Another worker for the pool."""
        command = [sys.executable, "-m", "prefect", *WORKER.split(), "--pool", POOL, "--type", POOL_TYPE]
        own = {"FANLINE_LOGICAL_GPUS": "4", "FANLINE_LEASE_DIR": str(self.scene.home / "leases")}
        env = {**self.scene.environment, **own, "PREFECT_WORKER_QUERY_SECONDS": "1", "PYTHONPATH": str(ROOT)}
        self.worker = supervised(command, env=env, log_path=self.scene.home / "worker.log", grace_seconds=9.0)
        return self.worker

    def _client(self) -> Any:
        from prefect.client.orchestration import SyncPrefectClient

        return SyncPrefectClient(api=self.scene.prefect.url)

    def _read(self) -> Any:
        with self._client() as client:
            return client.read_flow_run(self.flow_run)

    def is_over(self) -> bool:
        if time.monotonic() > self._looked + ASK_SECONDS:
            self._looked, self._over = time.monotonic(), self._read().state.is_final()
        return self._over

    def summary(self) -> dict[str, Any] | None:
        from infra.records.verdict import Outcome
        from tasks.report.publish import latest_summary

        deadline = time.monotonic() + RUN_SECONDS
        while not ((run := self._read()).state.is_final() and run.run_count > self.runs_before):
            if time.monotonic() > deadline:
                raise InfraFault(f"The flow run {self.flow_run} is still {run.state.name}.", ids=[self.flow_run])
            time.sleep(LOOK_SECONDS)
        self.runs_before = run.run_count
        if run.state.name not in Outcome.__members__:
            return {"verdict": run.state.name, "message": run.state.message}
        return latest_summary(self.scene.store.store, str(run.state.message).split(":")[0])

    def cancel(self) -> None:
        """What Cancel in the UI does."""
        from prefect.states import Cancelling

        with self._client() as client:
            client.set_flow_run_state(self.flow_run, Cancelling())

    def resumed(self, run_id: str) -> dict[str, Any] | None:
        from prefect.states import AwaitingRetry

        with self._client() as client:
            client.set_flow_run_state(self.flow_run, AwaitingRetry(), force=True)  # what Retry in the UI does
        return self.summary()

    def keeps(self, command: str) -> bool:
        return WORKER in command

    def close(self) -> None:
        stop(self.worker, 30)
