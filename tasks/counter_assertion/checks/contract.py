"""Nothing that a hook returned was refused."""

from infra.records.verdict import CheckResult
from tasks.counter_assertion.evidence import Evidence

NAME = "contract"
NEEDS = ()


def check(evidence: Evidence) -> CheckResult:
    """Red where the run ended because a hook broke the contract; the refusal's own words are the reason."""
    fault = evidence.fault
    if fault and fault.contract:
        return CheckResult(name=NAME, status="fail", reason=fault.message, figures={"error": fault.kind}, ids=fault.ids)
    stored = [i for i in evidence.iterations if "rollouts" in i.parts]
    if not stored:
        return CheckResult(name=NAME, status="not run", reason="no iteration got through its rollout stage")
    samples = sum(len(i.rollouts) for i in stored)
    reason = f"all {samples} samples of {len(stored)} iterations met the hook contract"
    return CheckResult(name=NAME, status="pass", reason=reason, figures={"samples": samples})
