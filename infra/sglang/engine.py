"""One SGLang server as a supervised process: start, wait, restart, stop. By default only this host reaches it."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from infra.errors import EngineUnavailable
from infra.nodes import LOOPBACK
from infra.ports import free_port
from infra.scenario.model import Engine
from infra.settings import settings as machine
from infra.sglang.address import HiddenKey, ServerAddress
from infra.sglang.client import EngineClient, MemoryPart
from infra.sglang.flags import Device, Dtype, dtype_on, server_arguments, server_environment, within_memory
from infra.sglang.health import is_ready
from infra.sglang.serving import ServingEngine
from infra.supervisor import stop, supervised

if TYPE_CHECKING:
    from infra.records.sources import ModelRef
    from infra.run import Run

ROOT = Path(__file__).resolve().parents[2]
START_ATTEMPTS = 2
BACKOFF_SECONDS = 1.0
POLL_SECONDS = 0.1
STOP_SECONDS = 15.0
LOG_LINES = 12
MEMORY_PARTS: tuple[MemoryPart, ...] = ("weights", "kv_cache")


class SGLangEngine(ServingEngine):
    """A server of one model. Must be started from the main thread, because it ends with the thread that started it.

    Args:
        model_path: local folder in Hugging Face layout.
        log_path: the server's output is appended here.
        host: the address of this host that it answers on; with another than the loopback one, give a key.
        key: what every request has to bring.
        devices: GPUs of the server, one for each tensor-parallel rank, as `CUDA_VISIBLE_DEVICES` names them; all that
            this process sees by default.

    Example:
        with SGLangEngine(model_path=…, …) as engine:  # starts; other things can start meanwhile
            engine.wait_ready()
            async with engine.client() as client: …
    """

    def __init__(
        self,
        *,
        model_path: Path,
        settings: Engine,
        device: Device,
        dtype: Dtype | Literal["auto"] = "auto",
        deterministic: bool = True,
        seed: int,
        log_path: Path,
        concurrency: int = 64,
        host: str = LOOPBACK,
        key: HiddenKey | None = None,
        devices: tuple[str, ...] = (),
    ):
        self.model_path, self.settings, self.log_path, self.concurrency = model_path, settings, log_path, concurrency
        self.device: Device = device
        self.dtype: Dtype = dtype_on(device) if dtype == "auto" else dtype
        self.deterministic, self.seed = deterministic, seed
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ServerAddress(host, 0, key, devices)
        self._asleep: set[MemoryPart] = set()
        self._was_ready = False
        self._name = ""
        self._started = 0.0
        self._attempts = 0

    @classmethod
    def for_run(
        cls,
        run: Run,
        model: ModelRef,
        *,
        device: Device | None = None,
        host: str = LOOPBACK,
        key: HiddenKey | None = None,
        devices: tuple[str, ...] = (),
        name: str = "engine",
    ) -> SGLangEngine:
        """The engine of a run on this host; its log lies in the run's spool folder, named after it."""
        from infra.megatron.device import resolve

        scenario = run.scenario
        return cls(
            model_path=model.path,
            settings=within_memory(scenario.engine, tight=machine().tight_memory),
            device=device or resolve(scenario),
            dtype=scenario.dtype,
            deterministic=scenario.deterministic,
            seed=scenario.seed,
            log_path=run.spool / f"{name}.log",
            concurrency=scenario.rollout.concurrency,
            host=host,
            key=key,
            devices=devices,
        )

    @property
    def url(self) -> str:
        """Where the server answers once `wait_ready` returned; a restart changes it."""
        return self._address.url

    @property
    def receivers(self) -> tuple[ServerAddress]:
        """Where a trainer rank of this host hands weights to."""
        return (self._address,)

    @property
    def running(self) -> bool:
        """Whether the server's process is there (it may still be starting)."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """The supervisor's process id: the server and its children are its descendants."""
        assert self._process is not None, "the engine was not started"
        return self._process.pid

    def client(self, concurrency: int | None = None) -> EngineClient:
        """A client for one event loop, to be used as `async with engine.client() as client`."""
        deadline = self.settings.request_deadline_seconds
        most, headers = concurrency or self.concurrency, self._address.headers
        return EngineClient(self.url, deadline, most, headers, self.log_path)

    @property
    def released(self) -> bool:
        """Whether weights and cache were given back, and not all of it was taken again."""
        return bool(self._asleep)

    def release(self) -> None:
        """Give the GPU's memory back, weights and cache. Requests that still run are ended.

        Raises:
            EngineUnavailable: the server does not answer.
        """
        self.settle()
        asyncio.run(self._ask(lambda client: client.release_memory(MEMORY_PARTS)))
        self._asleep = set(MEMORY_PARTS)

    def resume(self, part: MemoryPart) -> None:
        """Take memory again, of which the weights are undefined until they are pushed; errors as of `release`."""
        if part not in self._asleep:
            return  # the server ends where it is asked for what it has
        asyncio.run(self._ask(lambda client: client.resume_memory([part])))
        self._asleep.discard(part)

    async def _ask(self, what: Callable[[EngineClient], Awaitable[None]]) -> None:
        async with self.client(1) as client:
            await what(client)

    def start(self) -> None:
        """Start the server and return at once; a server that runs already is kept."""
        self._started = time.monotonic()
        if not self.running:
            self._attempts = 0
            self._launch()

    def answers(self) -> bool:
        """Whether the server answers now; one without its memory is not asked, its health check generates a token."""
        if self.released:
            return self.running
        return self.running and is_ready(self._address, "" if self._was_ready else self._name)

    def wait_ready(self) -> None:
        """Return when the server answers. A server that dies before is started a second time, on another port.

        Raises:
            EngineUnavailable: it died twice or was silent for `start_deadline_seconds`; shows its last log lines.
        """
        while not self.answers():
            if not self.running:
                self._launch_again()
            if time.monotonic() - self._started > self.settings.start_deadline_seconds:
                self.stop()
                raise self._unavailable(f"did not answer within {self.settings.start_deadline_seconds:g} s")
            time.sleep(POLL_SECONDS)
        self._was_ready = True  # its name may change: SGLang takes that of the folder that it loads weights from

    def stop(self) -> None:
        """End the server and everything that it started. There is nothing in it to save: it is killed at once."""
        if self._process is not None:
            stop(self._process, STOP_SECONDS)
            self._process = None

    def _launch(self) -> None:
        self._attempts += 1
        self._asleep, self._was_ready = set(), False
        self._address = replace(self._address, port=free_port())
        self._name = f"fanline-{secrets.token_hex(8)}"
        arguments = server_arguments(
            self.settings,
            model_path=self.model_path,
            served_name=self._name,
            device=self.device,
            dtype=self.dtype,
            deterministic=self.deterministic,
            seed=self.seed,
            address=self._address,
        )
        self._process = supervised(
            [sys.executable, "-m", "infra.sglang.launch", *arguments],
            env=server_environment(os.environ, self.device, self.dtype, self._address),
            log_path=self.log_path,
            cwd=ROOT,
            grace_seconds=0,
            private_tmp=True,
        )

    def _launch_again(self) -> None:
        assert self._process is not None, "the engine was not started"
        if self._attempts >= START_ATTEMPTS:
            raise self._unavailable(f"ended with exit code {self._process.returncode} before it answered, twice")
        time.sleep(BACKOFF_SECONDS * self._attempts)
        self._launch()

    def _unavailable(self, what: str) -> EngineUnavailable:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return EngineUnavailable(
            f"The SGLang server of {self.model_path} {what}. Its last lines:\n  " + "\n  ".join(lines) + "\n",
            next_step=f"Read {self.log_path}.",
            ids=[self.url],
        )
