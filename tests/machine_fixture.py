"""One machine as `fanline up` makes it: server, workers, store and deployments, once a session."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.chaos.processes import of_home
from infra.ports import free_port

ROOT = Path(__file__).parents[1]
QUICK = {
    "PREFECT_WORKER_QUERY_SECONDS": "1",
    # The server's own sweep over children of cancelled runs comes so late that it can not be what a test sees.
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "3600",
}


@dataclass(frozen=True)
class Machine:
    """A Prefect server with workers, and `fanline` commands against it."""

    home: Path
    api_url: str
    env: dict[str, str]

    def fanline(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "infra.cli", *arguments]
        env = {**self.env, "PREFECT_API_URL": self.api_url, **environment}
        return subprocess.run(
            command, env=env, cwd=self.home, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        from prefect import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self.api_url}), get_client(sync_client=True) as client:
            yield client

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The events of these names, newest first."""
        with self.client() as client:
            body = {"filter": {"event": {"name": list(names)}}, "limit": 50}
            return client.request("POST", "/events/filter", json=body).json()["events"]


def environment_of(home: Path, **more: str) -> dict[str, str]:
    """For commands of one home: the checkout's code, and nothing of another server."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL", "PREFECT_HOME")}
    own = {"FANLINE_HOME": str(home), "FANLINE_LEASE_DIR": str(home / "leases"), "PYTHONPATH": str(ROOT)}
    return {**kept, **own, **QUICK, **more}


@contextlib.contextmanager
def machine_up(home: Path, **more: str) -> Iterator[Machine]:
    """`fanline up` on a free port, and `fanline down` at the end."""
    env = environment_of(home, **more)
    port = free_port()
    machine = Machine(home=home, api_url=f"http://127.0.0.1:{port}/api", env=env)
    up = machine.fanline("up", "--port", str(port), "--json")
    try:
        assert up.returncode == 0, up.stderr
        assert json.loads(up.stdout)["api"] == machine.api_url
        yield machine
    finally:
        down = machine.fanline("down")
    assert down.returncode == 0, down.stderr


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Server, workers and deployments of this checkout, on SQLite."""
    with machine_up(tmp_path_factory.mktemp("machine"), FANLINE_HOOK_PACKAGES="hooks,tests") as up:
        yield up


@pytest.fixture(scope="session")
def on_postgres(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that is up with its server on PostgreSQL, and two deployments of the light flow."""
    from tests.flows.night import create_children  # imports Prefect, which has to wait for its settings

    home = tmp_path_factory.mktemp("postgres-machine")
    with machine_up(home, PREFECT_SERVER_DATABASE_CONNECTION_URL=postgres_url) as machine:
        create_children(machine, {"plumbing": {"ends": "PASS"}, "red": {"ends": "REGRESSION"}})
        yield machine
    assert of_home(home) == {}, "something was left by `fanline down`"
