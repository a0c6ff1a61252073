import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.nightly.judge import Ended, judged, message_of, verdict_of
from infra.records.verdict import Outcome

ENDED = st.builds(
    Ended,
    scenario=st.sampled_from(["tiny", "smol", "compact-short"]),
    outcome=st.sampled_from(Outcome),
    message=st.text(max_size=20),
    plumbing_only=st.booleans(),
)


@pytest.mark.parametrize(
    ("kind", "name", "outcome", "words", "verdict"),
    [
        ("COMPLETED", "PASS", Outcome.PASS, "why", True),
        ("FAILED", "REGRESSION", Outcome.REGRESSION, "why", True),
        ("FAILED", "INFRA", Outcome.INFRA, "why", True),
        ("CRASHED", "INFRA", Outcome.INFRA, "why", True),
        ("FAILED", "INCONCLUSIVE", Outcome.INCONCLUSIVE, "why", True),
        ("FAILED", "Failed", Outcome.INFRA, "ended as Failed: why", False),
        ("FAILED", "CONFIGURATION", Outcome.INFRA, "ended as CONFIGURATION: why", False),
        ("FAILED", "TimedOut", Outcome.INFRA, "ended as TimedOut: why", False),
        ("FAILED", "PASS", Outcome.INFRA, "ended as PASS: why", False),
        ("CANCELLED", "Cancelled", Outcome.INFRA, "was cancelled: why", False),
        ("CRASHED", "Crashed", Outcome.INFRA, "crashed: why", False),
        ("COMPLETED", "Completed", Outcome.INFRA, "ended as Completed without a verdict", False),
        ("COMPLETED", "REGRESSION", Outcome.INFRA, "ended as REGRESSION without a verdict", False),
    ],
)
def test_only_words_with_a_run_id_are_a_verdict_that_the_run_told_itself(
    kind: str, name: str, outcome: Outcome, words: str, verdict: bool
):
    assert judged(kind, name, "why") == (outcome, words, False)
    if verdict:
        assert judged(kind, name, "tiny-0123456789ab: why") == (outcome, "tiny-0123456789ab: why", True)


@settings(deadline=None)
@given(st.lists(ENDED, min_size=1, max_size=5))
def test_the_worst_wins_and_a_pass_needs_all(ended: list[Ended]):
    worst = [Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.INFRA, Outcome.REGRESSION]
    assert verdict_of(ended) is max((one.outcome for one in ended), key=worst.index)
    assert message_of(ended).startswith(f"{sum(one.outcome is Outcome.PASS for one in ended)} of {len(ended)} ")


def test_of_no_runs_nothing_can_be_said():
    assert verdict_of([]) is Outcome.INCONCLUSIVE


def test_a_plumbing_pass_says_so():
    ended = [Ended(scenario="compact-short", outcome=Outcome.PASS, message="", plumbing_only=True)]
    assert verdict_of(ended) is Outcome.PASS
    assert "plumbing only, without signal: compact-short" in message_of(ended)
