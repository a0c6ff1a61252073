"""Verdicts and errors as Prefect states."""

import pytest

from flows.verdict_state import as_state, ends_in_words
from infra.errors import (
    ConfigurationError,
    DownloadFailed,
    EngineUnavailable,
    FanlineError,
    HookFailed,
    StoreUnavailable,
    TrainerUnavailable,
)
from infra.records.verdict import Outcome, Verdict
from infra.run import Run
from infra.scenario.load import load


def state_of(outcome: Outcome, fault: FanlineError | None = None):
    run = Run(run_id="tiny-1", scenario=load("tiny"), store_uri="unused", spool=None)  # type: ignore[arg-type]
    return as_state(run, Verdict(outcome=outcome, message="because", checks=()), fault)


@pytest.mark.parametrize(
    ("outcome", "fault", "kind"),
    [
        (Outcome.PASS, None, "COMPLETED"),
        (Outcome.REGRESSION, None, "FAILED"),
        (Outcome.REGRESSION, HookFailed("a hook"), "FAILED"),
        (Outcome.INCONCLUSIVE, None, "FAILED"),
        (Outcome.INFRA, DownloadFailed("a file"), "FAILED"),
        (Outcome.INFRA, EngineUnavailable("the engine"), "CRASHED"),
        (Outcome.INFRA, TrainerUnavailable("a rank"), "CRASHED"),
        (Outcome.INFRA, StoreUnavailable("the store"), "CRASHED"),
        (Outcome.REGRESSION, EngineUnavailable("after a red check"), "FAILED"),
    ],
)
def test_a_verdict_is_the_name_and_its_causes_the_message(outcome, fault, kind):
    state = state_of(outcome, fault)
    assert (state.name, state.type.value, state.message) == (outcome.name, kind, "tiny-1: because")


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (ConfigurationError("no such run", next_step="Look."), "FAILED", "CONFIGURATION"),
        (StoreUnavailable("no bucket", next_step="Look."), "CRASHED", "INFRA"),
    ],
)
def test_an_error_before_any_verdict_is_said_in_the_state(error, kind, name):
    @ends_in_words
    def flow():
        raise error

    state = flow()
    assert (state.type.value, state.name, state.data) == (kind, name, error)
    assert state.message == f"{error.message} Look."


def test_a_bug_is_not_told_as_anything_else():
    @ends_in_words
    def flow():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        flow()
