"""`fanline trigger`: its exit code is the verdict."""

import json
from typing import Any

import pytest

from infra.deploy import trigger as deployment_trigger
from infra.errors import ConfigurationError
from tests.flows.night import create_children, read
from tests.machine_fixture import Machine

pytestmark = pytest.mark.prefect


@pytest.fixture(scope="module", autouse=True)
def deployments(machine: Machine) -> None:
    endings: dict[str, dict[str, Any]] = {"ends-red": {"ends": "REGRESSION"}, "lasts": {"ends": "PASS", "seconds": 600}}
    create_children(machine, endings)


def trigger(machine: Machine, *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = machine.fanline("trigger", *arguments, "--json")
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def test_the_exit_code_is_the_verdict(machine: Machine):
    code, said, errors = trigger(machine, "ends-red", "--tag", "pr-7")
    assert (code, said["verdict"]) == (1, "REGRESSION"), errors
    assert said["flow_run"] in said["link"] and "step 3 differs" in said["message"]
    assert read(machine, said["flow_run"]).tags == ["pr-7"]


def test_a_run_that_lasts_too_long_is_cancelled_and_infra(machine: Machine):
    code, said, _ = trigger(machine, "lasts", "--timeout", "1")
    assert (code, said["verdict"]) == (3, "INFRA") and "not finished after 1 s" in said["message"]
    assert read(machine, said["flow_run"]).state.type.value in ("CANCELLING", "CANCELLED")


@pytest.mark.parametrize(
    ("name", "overrides", "environment", "words"),
    [
        ("teeny", [], [], "There is no deployment fanout-regression/teeny"),
        ("tiny", ["rollout.promts=3"], [], "Did you mean 'prompts'"),
        ("tiny", [], ["PYTHONPATH"], "expected NAME=VALUE"),
        ("fanout-nightly/nightly", ["scenarios=[]"], [], "The server refuses the run"),
    ],
)
def test_wrong_usage_creates_no_run(
    machine: Machine, name: str, overrides: list[str], environment: list[str], words: str
):
    with machine.client(), pytest.raises(ConfigurationError, match=words):
        deployment_trigger.trigger(name, overrides, environment=environment, timeout_seconds=1)


def test_a_hook_outside_the_allowed_packages_is_refused_by_the_worker_with_words(machine: Machine):
    code, said, errors = trigger(machine, "tiny", "--set", "rollout.generate=os.path.join")
    assert (code, said["verdict"]) == (2, "CONFIGURATION"), errors
    assert "lies outside the packages that this deployment allows (hooks, tests)" in said["message"]
