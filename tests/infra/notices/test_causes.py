from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.notices.causes import Cause, cause_of, stripped
from infra.notices.memory import forget, remember
from infra.records.verdict import CheckResult, conclude
from infra.store import ArtifactStore

IDS = st.from_regex(r"[0-9a-f]{12}", fullmatch=True)


def cause(reason: str = "step 3 differs", scenario: str = "tiny", checks: tuple[str, ...] = ("steps",)) -> Cause:
    return Cause(scenario=scenario, verdict="REGRESSION", checks=checks, reason=reason)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-9, 1e9), IDS)
def test_ids_and_figures_do_not_matter(number: int, error: float, run: str):
    said = f"loss-oracle: step {number} of tiny-{run}: error {error}, rollouts [{number}, 7], see /tmp/{run}/engine.log"
    other = "loss-oracle: step 9 of tiny-abcdef012345: error 2.5e-06, rollouts [1, 2, 3], see /var/x.log"
    assert cause(said).fingerprint == cause(other).fingerprint


@pytest.mark.parametrize(
    "other",
    [
        cause("step 3 is missing"),
        cause(scenario="smol"),
        cause(checks=("steps", "ledger")),
        Cause(scenario="tiny", verdict="INFRA", checks=("steps",), reason="step 3 differs"),
    ],
)
def test_words_checks_scenario_and_verdict_do(other: Cause):
    assert cause().fingerprint != other.fingerprint
    assert cause(checks=("a", "b")).fingerprint == cause(checks=("b", "a")).fingerprint


def test_the_words_that_are_left():
    assert stripped("step 3 of tiny-0123456789ab: error 2.6e-06") == "step # of #: error #"


def test_a_green_run_has_no_cause_and_a_red_one_that_of_its_red_checks():
    checks = [
        CheckResult(name="counter", status="pass", reason="fine"),
        CheckResult(name="ledger", status="fail", reason="rollout 4 is missing"),
    ]
    red = cause_of("tiny", conclude(checks, plumbing_only=True))
    assert red == Cause(
        scenario="tiny", verdict="REGRESSION", checks=("ledger",), reason="ledger: rollout 4 is missing"
    )
    green = [CheckResult(name=name, status="pass", reason="") for name in ("counter", "ledger")]
    assert cause_of("tiny", conclude(green, plumbing_only=True)) is None


def test_a_cause_is_new_once_and_again_after_a_green_run(tmp_path: Path):
    store = ArtifactStore(str(tmp_path))
    assert remember(store, cause(), "run-1")
    assert remember(store, cause(), "run-1"), "the same run, retried, is still the first"
    assert not remember(store, cause("step 4 differs"), "run-2")
    assert remember(store, cause("another thing"), "run-3")
    assert remember(store, cause(scenario="smol"), "run-4"), "scenarios do not share their causes"
    forget(store, "tiny", "run-5")
    forget(store, "tiny", "run-6")
    assert remember(store, cause(), "run-7")
    assert not remember(store, cause(scenario="smol"), "run-8")


def test_green_runs_alone_leave_nothing(tmp_path: Path):
    store = ArtifactStore(str(tmp_path))
    forget(store, "tiny", "run-1")
    assert store.keys("notices") == []


@settings(max_examples=25, deadline=None)
@given(history=st.lists(st.sampled_from(["green", "a", "b"]), max_size=10))
def test_told_exactly_when_not_told_since_the_last_green_run(
    history: list[str], tmp_path_factory: pytest.TempPathFactory
):
    store = ArtifactStore(str(tmp_path_factory.mktemp("store")))
    told: set[str] = set()
    for number, what in enumerate(history):
        if what == "green":
            forget(store, "tiny", f"run-{number}")
            told.clear()
        else:
            assert remember(store, cause(f"{what} differs"), f"run-{number}") == (what not in told)
            told.add(what)
