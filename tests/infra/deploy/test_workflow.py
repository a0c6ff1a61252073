"""The CI workflow's command makes a run that a worker takes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from typer.testing import CliRunner

from infra.cli import app
from infra.deploy import trigger
from infra.deploy.matrix import load_matrix
from infra.pool.worker_config import GpuJobConfiguration, GpuVariables
from tests.infra.deploy.workflow import arguments, jobs


class Asked(Exception):
    """Instead of a run: what was asked for."""


class Client:
    """As much of a server's as `fanline trigger` needs until it asks for a run."""

    def read_deployment_by_name(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(id=name, parameters={})

    def create_flow_run_from_deployment(self, deployment: str, **asked: Any) -> None:
        raise Asked(deployment, asked)


@pytest.fixture
def asked_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(deployment, what is asked for beside it) of a command line."""

    @contextlib.contextmanager
    def connected() -> Iterator[Client]:
        yield Client()

    def ask(words: list[str]) -> tuple[str, dict[str, Any]]:
        raised = CliRunner().invoke(app, words).exception
        assert isinstance(raised, Asked), raised
        return raised.args[0], raised.args[1]

    monkeypatch.setattr(trigger, "connected", connected)
    return ask


@pytest.mark.parametrize("job", jobs())
def test_the_run_of_a_pull_request_is_one_that_a_worker_takes(job: str, asked_by: Any, tmp_path: Path):
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    deployment, asked = asked_by(arguments(job, checkout))
    assert deployment == f"fanout-regression/{job}"
    assert asked["work_queue_name"] == load_matrix().ci.queue and asked["tags"] == ["pr-7", "0123abcd"]
    GpuVariables.model_validate(asked["job_variables"])  # the pool's form
    configuration = GpuJobConfiguration(**asked["job_variables"])
    configuration.prepare_for_flow_run(FlowRun(flow_id=uuid4()))
    assert configuration.refusal() is None
    assert configuration.working_dir == checkout


def test_a_folder_of_here_is_named_as_every_folder_can(asked_by: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert asked_by(["trigger", "tiny", "--working-dir", "."])[1]["job_variables"] == {"working_dir": str(tmp_path)}
    assert asked_by(["trigger", "tiny"])[1]["job_variables"] is None
