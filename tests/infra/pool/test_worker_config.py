"""What a run may ask of its worker, and what its folder decides."""

import os
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.utilities.processutils import command_from_string

from infra.pool.worker import ENGINE, supervised
from infra.pool.worker_config import GpuJobConfiguration

ROOT = Path(__file__).parents[3]


def refusal(**variables: Any) -> str | None:
    configuration = GpuJobConfiguration(**variables)
    configuration.prepare_for_flow_run(FlowRun(flow_id=uuid4()))
    return configuration.refusal()


@pytest.mark.parametrize("name", ["PYTHONPATH", "FANLINE_HOOK_PACKAGES", "LD_PRELOAD", "PATH", "RAY_ADDRESS"])
def test_what_is_the_hosts_is_refused(name: str):
    assert f"env sets {name}, which only the worker's host may set" in str(refusal(env={name: "/tmp"}))
    assert refusal(env={"FANLINE_STORE": "s3://bucket/runs", "OTHER": "1"}) is None


def test_a_folder_that_the_host_does_not_have_is_refused(tmp_path: Path):
    assert refusal(working_dir=str(tmp_path)) is None
    assert f"working_dir is {tmp_path / 'gone'}: host" in str(refusal(working_dir=str(tmp_path / "gone")))


def test_code_of_the_working_folder_goes_before_the_hosts(tmp_path: Path):
    """A pull request's run is started in its checkout, by a worker whose environment names other code."""
    package = tmp_path / "infra" / "pool"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "engine.py").write_text("print('the engine of the checkout')")
    command = command_from_string(supervised(ENGINE))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "the engine of the checkout\n"
