"""The whole loop, as a person runs it: real SGLang, Ray, Megatron-core and Prefect."""

from collections.abc import Callable

import httpx
import pytest

from tests.flows.conftest import Ended
from tests.flows.slow_run import WEIGHTS_ONLY

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.trainer, pytest.mark.prefect]

Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def tiny(run: Run) -> Ended:
    return run("tiny")


def test_tiny_passes_and_every_required_check_ran(tiny: Ended):
    assert tiny.code == 0, tiny.errors
    assert tiny.summary and tiny.summary["verdict"] == "PASS"
    assert {c["name"]: c["status"] for c in tiny.summary["checks"] if c["status"] != "pass"} == {}


def test_the_same_seed_gives_the_same_weights(run: Run, tiny: Ended):
    again = run("tiny", *WEIGHTS_ONLY)
    assert tiny.summary and again.summary and again.code == 0
    assert again.summary["weights_digest"] == tiny.summary["weights_digest"]
    assert again.summary["run"] != tiny.summary["run"]


def test_a_wrong_hook_is_a_regression_that_names_it(run: Run):
    path = "tests.flows.user_hooks.returns_none"  # tests/rollout has all that a hook may not return
    refused = run("tiny", "--set", f"rollout.generate={path}", FANLINE_HOOK_PACKAGES="hooks,tests")
    assert refused.code == 1, refused.errors
    contract = refused.check("contract")
    assert contract["status"] == "fail" and path in contract["reason"] and "None" in contract["reason"]


def test_a_hook_outside_the_allowed_packages_is_refused_before_anything_starts(run: Run):
    refused = run("tiny", "--set", "rollout.generate=os.path.join")
    assert refused.code == 2 and "os.path.join" in refused.errors


def test_a_typo_is_refused_with_the_nearest_name(run: Run):
    refused = run("tiny", "--set", "rollout.promts=3")
    assert refused.code == 2 and "prompts" in refused.errors


def test_what_a_run_can_not_show_is_said_at_its_beginning_once_and_in_its_log(run: Run, prefect_url: str):
    words = "hooks.rewards.deepscaler gives 0 to every answer"
    refused = run("tiny", "--set", "rollout.reward=hooks.rewards.deepscaler", "--set", "rollout.generate=os.path.join")
    assert refused.code == 2 and refused.errors.count(words) == 1, refused.errors
    logs = httpx.post(f"{prefect_url}/logs/filter", json={"sort": "TIMESTAMP_DESC", "limit": 100}).json()
    assert [log["level"] for log in logs if words in log["message"]] == [30]
