"""The processes that one machine needs, and how each is kept running."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.supervisor import supervised

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, STEADY_SECONDS = 1.0, 30.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """One program: what it is called, its command, and how long it may take to end by itself."""

    name: str
    command: Sequence[str]
    grace_seconds: float


def server_service(port: int) -> Service:
    """Prefect's server, on the loopback address, with its scheduler, automations and clean-up."""
    start = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    return Service(name="server", command=start, grace_seconds=2.5)


def worker_service(pool: str, worker_type: str, host: str) -> Service:
    """A worker of one pool."""
    start = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", worker_type]
    start += ["--install-policy", "never", "--no-create-pool-if-not-found"]
    # Its runs get the time to end, or to be scheduled again, and to tell the server.
    return Service(name=f"worker-{pool}", command=[*start, "--name", f"{host}-{pool}"], grace_seconds=9.0)


def pause_seconds(deaths: int) -> float:
    """How long to wait before a service that has died so often in a row is started again."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** max(deaths - 1, 0), LONGEST_PAUSE_SECONDS)


@dataclass
class Kept:
    """A service that is started again when it dies, after pauses that grow; a minute of life resets them."""

    service: Service
    env: Mapping[str, str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    _started: float = field(default=0.0)
    _next_start: float = field(default=0.0)

    def start(self) -> None:
        self.process = supervised(
            self.service.command, env=self.env, log_path=self.log_path, grace_seconds=self.service.grace_seconds
        )
        self._started = time.monotonic()

    def look(self) -> str | None:
        """Start it again if it is due; returns a line to log, or None where there is nothing to say."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return None
            self.deaths = 1 if now - self._started > STEADY_SECONDS else self.deaths + 1
            self.process, pause = None, pause_seconds(self.deaths)
            self._next_start = now + pause
            return f"{self.service.name} ended with {code}; it starts again in {pause:g} s"
        if now < self._next_start:
            return None
        self.start()
        return f"{self.service.name} is started again"

    def terminate(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait for its end, with everything that it had started."""
        if self.process is not None:
            self.process.wait(seconds)
