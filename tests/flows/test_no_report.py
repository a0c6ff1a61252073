"""Runs that could not publish a report: what kept them from it is said, with its exit code."""

import json
import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.prefect


def test_a_store_that_takes_nothing_is_named(start_run: Callable[..., subprocess.Popen[str]]):
    process = start_run("tiny", "--store", "/proc/nowhere")
    output, errors = process.communicate(timeout=300)
    said = json.loads(output)
    assert (process.returncode, said["exit_code"]) == (3, 3), errors
    assert said["error"].startswith("The artifact store /proc/nowhere can not write"), said
