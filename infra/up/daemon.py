"""The supervisor behind `fanline up`: starts server and workers, deploys, and keeps them running until it is ended.

Each of them runs under `infra/supervisor.py`, which dies with this process: nothing is left whatever ends it.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from infra.deploy.matrix import load_matrix
from infra.pool.inventory import DRIVER
from infra.pool.process import start_time
from infra.prefect_api import QUIET
from infra.settings import settings
from infra.up.services import Kept, Service, server_service, worker_service
from infra.up.state import UpState, folder

LOOK_SECONDS = 0.5
HEALTHY_SECONDS = 180.0
STOP_SECONDS = 11.0
SAID_CHARACTERS = 4000
LOGICAL_GPUS = "4"


class Ending(Exception):
    """A signal asked this process to end."""


class Daemon:
    """Everything that runs for one home folder."""

    def __init__(self, home: Path, port: int):
        self.home, self.folder = home, folder(home)
        pid = os.getpid()
        self.state = UpState(pid=pid, started=start_time(pid) or 0, port=port)
        self.env = {
            "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # SQLite: a writer waits for the other ones
            "FANLINE_DRAIN_SECONDS": "1",  # `fanline down` has 15 seconds; runs go on at the next `up`
            **logical_gpus(),
            **os.environ,
            **QUIET,
            "FANLINE_HOME": str(home.absolute()),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": self.state.api_url,
        }
        self.kept: list[Kept] = []

    def run(self) -> None:
        """Until a signal asks to end."""
        self.state.write(self.home)
        try:
            self.keep(server_service(self.state.port))
            self.wait_until_healthy()
            self.state = replace(self.state, phase="ready", said=self.deploy())
            for pool, its in load_matrix().pools.items():
                self.keep(worker_service(pool, its.type, socket.gethostname()))
            self.state.write(self.home)
            while True:
                self.look()
                time.sleep(LOOK_SECONDS)
        except Ending:
            log("asked to end")
        except Failed as failed:
            log(str(failed))
            replace(self.state, phase="failed", said=str(failed)).write(self.home)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.stop()

    def keep(self, service: Service) -> None:
        kept = Kept(service=service, env=self.env, log_path=self.log_path(service.name))
        kept.start()
        self.kept.append(kept)
        log(f"{service.name} is started")

    def look(self) -> None:
        for kept in self.kept:
            if said := kept.look():
                log(said)

    def log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def wait_until_healthy(self) -> None:
        """Until the server answers; one that dies at its start is started again meanwhile."""
        deadline = time.monotonic() + HEALTHY_SECONDS
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.state.api_url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                self.look()
                time.sleep(LOOK_SECONDS)
        raise Failed(f"The server did not answer in {HEALTHY_SECONDS:g} s; read {self.log_path('server')}.")

    def deploy(self) -> str:
        """Bring the server in line; returns what that changed."""
        command = [sys.executable, "-m", "infra.cli", "deploy"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        with self.log_path("deploy").open("a") as file:
            file.write(done.stdout + done.stderr)
        if done.returncode:
            raise Failed(f"`fanline deploy` ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout[:SAID_CHARACTERS].strip()

    def stop(self) -> None:
        """Workers first: their runs still have the server to say how they ended."""
        workers, servers = self.kept[1:], self.kept[:1]
        for group in (workers, servers):
            for kept in group:
                kept.terminate()
            for kept in group:
                kept.wait(STOP_SECONDS)
        log("everything is ended")


def logical_gpus() -> dict[str, str]:
    """A host without GPUs presents as many as the pool's name says; its runs are marked `emulated`."""
    return {} if DRIVER.exists() else {"FANLINE_LOGICAL_GPUS": LOGICAL_GPUS}


class Failed(Exception):
    """What keeps this machine from being up, in words."""


def log(line: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Keep server and workers of one machine running.")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(arguments)

    def end(number: int, frame: object) -> None:
        raise Ending

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal that started it may go
    Daemon(settings().home, options.port).run()


if __name__ == "__main__":
    main(sys.argv[1:])
