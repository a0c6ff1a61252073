"""A Ray cluster for one run: joined where the environment names one, else a local head that ends with this process."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from infra.errors import TrainerUnavailable
from infra.nodes import matching
from infra.run import Run
from infra.settings import settings
from infra.supervisor import stop, supervised

START_SECONDS = 120.0
START_ATTEMPTS = 3
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.05
HOPE_SECONDS = 86_400
KNOCK_SECONDS = 10.0
ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def _authentication() -> dict[str, str]:
    """The token of this process's clusters: Ray listens on more than the loopback address, and runs what it is sent."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextlib.contextmanager
def signals_heard() -> Iterator[None]:
    """What a signal handler raises while Ray waits comes out of Ray's compiled code as a SystemError: undo that.

    Raises:
        BaseException: what the handler raised, where it was meant to end the process and not to be an error.
    """
    try:
        yield
    except SystemError as error:
        if error.__cause__ is None or isinstance(error.__cause__, Exception):
            raise
        raise error.__cause__ from None


class RayCluster:
    """Context manager; enter it from the main thread. `start` does not wait for the head, `connect` does.

    Args:
        namespace: of the actors, the run's id.
        ranks: trainer ranks; a local head offers at least as many logical CPUs.
        gpus: GPUs of a local head, logical ones on a host without.
        log_path: file for the output of a local head.
        address: host:port of a cluster to join instead of starting one.
        trainer_labels, engine_labels: of the nodes of a joined cluster that ranks and engine may run on.
    Raises:
        TrainerUnavailable: the cluster does not start or does not answer; names the log.
    """

    def __init__(
        self,
        namespace: str,
        ranks: int,
        gpus: int,
        log_path: Path,
        address: str | None = None,
        *,
        trainer_labels: Mapping[str, str] | None = None,
        engine_labels: Mapping[str, str] | None = None,
    ):
        self.namespace, self.ranks, self.gpus = namespace, ranks, gpus
        self.log_path, self.address = log_path, address
        # A head of our own has no labels: there is one node, and it has to do.
        self.trainer_labels = dict(trainer_labels or {}) if address else {}
        self.engine_labels = dict(engine_labels or {}) if address else {}
        self.ready = log_path.with_suffix(".address")
        self.head: subprocess.Popen[bytes] | None = None
        self.connected = False

    @classmethod
    def for_run(cls, run: Run) -> RayCluster:
        """The cluster of a run: one GPU a rank; where they are logical enough for another layout beside it."""
        from infra.megatron.device import resolve

        ranks = run.scenario.training.world_size
        gpus = max(2 * ranks, 3) if resolve(run.scenario) == "cpu" else ranks
        now = settings()
        return cls(
            run.run_id,
            ranks,
            gpus,
            run.spool / "ray.log",
            now.ray_address,
            trainer_labels=now.trainer_labels,
            engine_labels=now.engine_labels,
        )

    @property
    def local(self) -> bool:
        """Whether every rank runs on this host."""
        return self.address is None

    def start(self) -> None:
        """Start a local head, unless an address was given; returns at once."""
        if self.address is not None:
            return
        self.ready.unlink(missing_ok=True)
        cpus = max(self.ranks, self.gpus, os.cpu_count() or 1)
        command = [sys.executable, "-m", "infra.ray_head", str(self.ready)]
        command += ["--cpus", str(cpus), "--gpus", str(self.gpus)]
        env = {**os.environ, **_authentication(), "RAY_USAGE_STATS_ENABLED": "0"}
        self.head = supervised(command, env=env, log_path=self.log_path, private_tmp=True, cwd=ROOT)

    def connect(self) -> None:
        """Join the cluster as this process's driver; waits until it answers."""
        import ray

        if self.connected:
            return
        address = self.address or self._address_of_head()
        self._knock(address)
        if self.local:
            # `check` sees a head that is gone in a second; a minute later Ray would abort this process without a word.
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(HOPE_SECONDS))
            # Ray's client takes its token from the environment only, and read its mode when it was imported.
            os.environ.update(_authentication())
            ray._raylet.Config.initialize("")  # type: ignore[attr-defined]
        ends = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, namespace=self.namespace, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError) as cause:
            raise self._unavailable(f"does not answer at {address}: {cause}") from cause
        # Ray's own handlers leave by SystemExit, or abort: Prefect could not tell a cancelled run from a crash.
        signal.signal(signal.SIGTERM, ends)
        self.connected = True

    def _knock(self, address: str) -> None:
        """Ray itself goes on for minutes where nobody listens."""
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.rpartition("/")[2], int(port)), KNOCK_SECONDS).close()
        except (OSError, ValueError) as cause:
            raise self._unavailable(f"does not answer at {address}: {cause}") from cause

    def _address_of_head(self) -> str:
        """Waits for the local head; starts it again if it gives up, as Ray does after 30 s on a busy host."""
        for attempt in range(START_ATTEMPTS):
            if attempt:
                self.start()
            if (address := self._wait_for_head()) is not None:
                return address
        raise self._unavailable(f"ended while it started, {START_ATTEMPTS} times")

    def _wait_for_head(self) -> str | None:
        """The head's address; None where its process ended."""
        assert self.head is not None
        deadline = time.monotonic() + START_SECONDS
        while not self.ready.exists():
            if self.head.poll() is not None:
                return None
            if time.monotonic() > deadline:
                raise self._unavailable(f"did not start within {START_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)
        return self.ready.read_text()

    def offered_gpus(self) -> int:
        """GPUs of the nodes that trainer ranks may run on, free or not; waits until the cluster answers."""
        import ray

        self.connect()
        return int(sum(n["Resources"].get("GPU", 0) for n in matching(ray.nodes(), self.trainer_labels)))

    @property
    def gone(self) -> bool:
        """Whether a local head has ended: all that ran under it has too, and calls of Ray get no answer."""
        return self.head is not None and self.head.poll() is not None

    def check(self) -> None:
        """Raises TrainerUnavailable if the local head is gone."""
        if self.gone:
            assert self.head is not None
            raise self._unavailable(f"ended with {self.head.returncode}")

    def stop(self) -> None:
        """Leave the cluster, and end a local head with everything it started."""
        import ray

        if self.head is not None:
            stop(self.head, STOP_SECONDS)
        if self.connected:
            ray.shutdown()
            self.connected = False
        if self.head is not None:
            self.head = None
            self.ready.unlink(missing_ok=True)

    def _unavailable(self, what: str) -> TrainerUnavailable:
        return TrainerUnavailable(
            f"The Ray cluster of {self.namespace} {what}.", next_step=f"See {self.log_path}.", ids=[self.namespace]
        )

    def __enter__(self) -> RayCluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
