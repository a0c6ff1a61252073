"""Nodes of a Ray cluster on this machine, as `ray start` makes them: each has its address, labels and GPUs."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from infra.chaos.processes import of_home
from infra.errors import InfraFault
from infra.ports import free_port
from infra.ray_head import OBJECT_STORE_BYTES
from infra.supervisor import stop, supervised

START_SECONDS = 120.0
LOOK_SECONDS = 0.1
STOP_SECONDS = 30.0
ROLE = "fanline.role"
WORKERS = ("infra.sglang.launch", "ray::EngineHost", "ray::TrainerRank")


@dataclass
class RayNodes:
    """A cluster that a run joins. Addresses are of the loopback network; the first node is the head.

    Args:
        folder: keeps the nodes' homes and logs.
        environment: what the nodes need to reach the store.
    """

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # Ray puts sockets there: the path has to be short.
        self.sessions = Path(tempfile.mkdtemp(prefix="fanline-ray-"))

    @property
    def driver_environment(self) -> dict[str, str]:
        """What a run needs to join."""
        labels = {"FANLINE_TRAINER_LABELS": f"{ROLE}=trainer", "FANLINE_ENGINE_LABELS": f"{ROLE}=engine"}
        return {**self.token, **labels, "RAY_ADDRESS": f"127.0.0.1:{self.port}"}

    def start(self, name: str, role: str, *, gpus: int) -> None:
        """Start a node and return when the cluster knows it. `127.0.0.1` is the head, others are `127.0.0.2`, ….

        Raises:
            InfraFault: it does not start; names its log.
        """
        head = not self.nodes
        address = f"127.0.0.{len(self.nodes) + 1}"
        where = ["--head", "--port", str(self.port), "--include-dashboard", "false"]
        if find_spec("grpc"):  # without it Ray has no client server, and refuses a port for one
            where += ["--ray-client-server-port", str(free_port())]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += where if head else ["--address", f"127.0.0.1:{self.port}"]
        command += ["--node-ip-address", address, "--labels", f"{ROLE}={role}", "--temp-dir", str(self.sessions)]
        command += ["--num-cpus", "2", "--num-gpus", str(gpus), "--object-store-memory", str(OBJECT_STORE_BYTES)]
        env = {**os.environ, **self.environment, **self.token, "FANLINE_HOME": str(self.home(name))}
        log = self.folder / f"{name}.log"
        self.nodes[name] = supervised(command, env=env, log_path=log, grace_seconds=0.0)
        deadline = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in (log.read_text() if log.exists() else ""):
            if self.nodes[name].poll() is not None or time.monotonic() > deadline:
                raise InfraFault(f"The Ray node {name} did not start.", next_step=f"Read {log}.", ids=[name])
            time.sleep(LOOK_SECONDS)

    def home(self, name: str) -> Path:
        """FANLINE_HOME of what runs on a node."""
        return self.folder / name

    def kill(self, name: str) -> None:
        """The node is gone at once, with everything that ran on it."""
        stop(self.nodes[name], STOP_SECONDS)

    def working(self) -> list[str]:
        """Command lines of the engines and ranks that are on some node."""
        found = [command for name in self.nodes for command in of_home(self.home(name)).values()]
        return [command for command in found if any(word in command for word in WORKERS)]

    def close(self) -> None:
        for process in reversed(list(self.nodes.values())):
            stop(process, STOP_SECONDS)
        shutil.rmtree(self.sessions, ignore_errors=True)
