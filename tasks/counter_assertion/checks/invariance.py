"""The same step under permuted samples, another layout or token budget, and merged copies gives the same gradient."""

from infra.records.verdict import CheckResult
from tasks.counter_assertion.evidence import Evidence

NAME = "invariance"
NEEDS = ()


def check(evidence: Evidence) -> CheckResult:
    """Needs the step to be run again in other shapes, which no stage does yet."""
    return CheckResult(name=NAME, status="not run", reason="the step was not run again in other shapes")
