"""How long a night waits for a child, by the state that it is in."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType

from infra.nightly import children
from infra.nightly.children import CANCEL_SECONDS, Child, wait_for_children
from infra.records.verdict import Outcome

RUN_SECONDS, PICK_UP_SECONDS = 1000.0, 100.0


def since(kind: StateType, seconds: float) -> FlowRun:
    """A run that has been in a state for so long."""
    state = State(type=kind, timestamp=datetime.now(UTC) - timedelta(seconds=seconds))
    return FlowRun(flow_id=uuid4(), state=state, estimated_run_time=timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("kind", "limit", "words"),
    [
        (StateType.RUNNING, RUN_SECONDS, "was still running"),
        (StateType.PAUSED, RUN_SECONDS, "was still paused"),
        (StateType.CANCELLING, CANCEL_SECONDS, "was being cancelled for more than 60 s"),
    ],
)
def test_no_state_lasts_for_ever(kind: StateType, limit: float, words: str):
    assert words in children._over_limit(since(kind, limit + 5), RUN_SECONDS, PICK_UP_SECONDS, 0.0)
    assert children._over_limit(since(kind, limit - 5), RUN_SECONDS, PICK_UP_SECONDS, 0.0) == ""


@pytest.mark.parametrize("kind", [kind for kind in StateType if not State(type=kind).is_final()])
def test_every_state_that_is_not_an_end_has_a_limit(kind: StateType):
    assert children._over_limit(since(kind, 10**6), RUN_SECONDS, PICK_UP_SECONDS, 10**6)


def test_a_child_that_is_cancelled_on_a_dead_host_is_infra(monkeypatch: pytest.MonkeyPatch):
    gone = since(StateType.CANCELLING, 3600)
    monkeypatch.setattr(children, "_look", lambda child, poll_seconds: gone)
    (ended,) = wait_for_children([Child(scenario="tiny", flow_run_id=gone.id)], RUN_SECONDS, PICK_UP_SECONDS, 0.01)
    assert ended.outcome is Outcome.INFRA and not ended.verdict
    assert "did not end: its host may be down" in ended.message and ended.flow_run_id == str(gone.id)
