"""The checks in the order in which a report lists them, and how they are run over evidence that may have gaps."""

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from infra.records.verdict import CheckResult
from tasks.counter_assertion.checks import (
    contract,
    counter,
    determinism,
    identity,
    invariance,
    ledger,
    loss_oracle,
    non_vacuity,
    normalisation,
    on_policy,
    optimizer,
    rewards,
    steps,
    weight_sync,
)
from tasks.counter_assertion.evidence import Absent, Evidence

CHECKS: tuple[ModuleType, ...] = (
    contract,
    non_vacuity,
    counter,
    ledger,
    identity,
    normalisation,
    steps,
    loss_oracle,
    invariance,
    optimizer,
    on_policy,
    weight_sync,
    determinism,
    rewards,
)
NAMES = tuple(c.NAME for c in CHECKS)
OF_THE_RUN = ("model", "prompts")  # parts that belong to the run, not to an iteration


def run_checks(evidence: Evidence, only: Sequence[str] = ()) -> list[CheckResult]:
    """Every check, or those named, on what is there of the evidence."""
    chosen = [c for c in CHECKS if not only or c.NAME in only]
    results = [_run(c, evidence) for c in chosen]
    return [*_fault_of_the_run(evidence), *results]


def _run(check: ModuleType, evidence: Evidence) -> CheckResult:
    """A check sees the iterations that have all parts it needs; what lacks is said, and is never a pass."""
    missing = evidence.missing(check.NEEDS)
    if damaged := [a for a in missing if a.damaged]:
        reason = "its evidence can not be read: " + "; ".join(dict.fromkeys(a.reason for a in damaged))
        return CheckResult(name=check.NAME, status="infra", reason=reason, ids=tuple(a.part for a in damaged))
    if absent := [a for a in missing if a.part in OF_THE_RUN]:
        return CheckResult(name=check.NAME, status="not run", reason=absent[0].reason)
    shown = evidence.with_parts(tuple(p for p in check.NEEDS if p not in OF_THE_RUN))
    if check.NEEDS and (not shown.iterations or (missing and not evidence.fault)):
        return CheckResult(name=check.NAME, status="not run", reason=_what_lacks(missing, evidence))
    result: CheckResult = check.check(shown)
    if check.NEEDS and not shown.complete and result.status != "not run":
        which = ", ".join(str(i.iteration) for i in shown.iterations)
        result = replace(result, reason=f"{result.reason} (looked at iteration {which} only: the run ended early)")
    return result


def _what_lacks(missing: Sequence[Absent], evidence: Evidence) -> str:
    """All of it, but of a run that ended early the first: what came after can not be there."""
    reasons = list(dict.fromkeys(a.reason for a in missing)) or ["the run has no iterations"]
    if evidence.fault is None:
        return "; ".join(reasons)
    later = f", nor did {len(reasons) - 1} after it" if len(reasons) > 1 else ""
    return f"the run ended early: {reasons[0]}{later}"


def _fault_of_the_run(evidence: Evidence) -> list[CheckResult]:
    """An early end that is no hook's doing, as a result of its own, named for what failed."""
    fault = evidence.fault
    if fault is None or fault.contract:
        return []
    status = "fail" if fault.regression else "inconclusive" if fault.inconclusive else "infra"
    return [CheckResult(name=fault.kind, status=status, reason=fault.message, ids=fault.ids)]
