"""The training of one iteration, replayed from the stored rollouts, gives the same weights digest."""

from infra.records.verdict import CheckResult
from tasks.counter_assertion.evidence import Evidence

NAME = "determinism"
NEEDS = ()


def check(evidence: Evidence) -> CheckResult:
    """Needs a replay of an iteration by another process, which no stage does yet."""
    return CheckResult(name=NAME, status="not run", reason="no iteration was replayed from its stored rollouts")
