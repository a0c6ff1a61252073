import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.pool.worker_fixture import Pool, new_pool_in

ROOT = Path(__file__).parents[3]


class AgentProcess:
    """An agent (tests/infra/pool/agent.py) and a lease folder that it works in."""

    def __init__(self) -> None:
        self.folder = Path()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.infra.pool.agent"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def tell(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin
        print(
            json.dumps({"folder": str(self.folder), "do": do, "with": arguments}), file=self.process.stdin, flush=True
        )

    def answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"agent {self.process.pid} ended"
        return json.loads(line)

    def ask(self, do: str, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def three_agents() -> Iterator[list[AgentProcess]]:
    """Three processes for cases that kill none."""
    agents = [AgentProcess() for _ in range(3)]
    yield agents
    for agent in agents:
        agent.kill()


@pytest.fixture
def new_agent(tmp_path: Path) -> Iterator[Callable[[], AgentProcess]]:
    """Start a process of a case's own, which it may kill."""
    agents: list[AgentProcess] = []

    def start() -> AgentProcess:
        agent = AgentProcess()
        agent.folder = tmp_path
        agents.append(agent)
        return agent

    yield start
    for agent in agents:
        agent.kill()


@pytest.fixture(scope="session")
def new_pool(prefect_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pool]]:
    """Create a GPU pool of its own for some cases, with the probe deployed to it."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: prefect_url}):
        yield lambda name: new_pool_in(tmp_path_factory.mktemp(name), name)
