import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flows.slow_run import Start, start_slow

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a `fanline run … --json` ended."""

    code: int
    summary: dict[str, Any] | None
    errors: str

    def check(self, name: str) -> dict[str, Any]:
        assert self.summary, self.errors
        return next(c for c in self.summary["checks"] if c["name"] == name)


@pytest.fixture(scope="session")
def start_run(prefect_url: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.Popen[str]]:
    """Start `fanline run … --json` as a person would; returns its process."""
    home = tmp_path_factory.mktemp("fanline")

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PREFECT_API_URL": prefect_url, "FANLINE_HOME": str(home), **environment}
        command = [sys.executable, "-m", "infra.cli", "run", *arguments, "--json"]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    return start


def ended(process: subprocess.Popen[str]) -> Ended:
    output, errors = process.communicate(timeout=600)
    return Ended(process.returncode, json.loads(output) if output.strip() else None, errors)


@pytest.fixture(scope="session")
def run(start_run: Callable[..., subprocess.Popen[str]]) -> Callable[..., Ended]:
    return lambda *arguments, **environment: ended(start_run(*arguments, **environment))


@pytest.fixture(scope="session")
def undisturbed(start_run: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights digest of the run that nobody disturbs."""
    result = ended(start_slow(start_run, tmp_path_factory.mktemp("undisturbed")))
    assert result.summary and result.code == 0, result.errors
    return result.summary["weights_digest"]
