"""Checks and the verdict over them. The worst outcome wins: REGRESSION over INFRA over INCONCLUSIVE over PASS."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal


class Outcome(Enum):
    """A run's outcome; the value is the exit code of spec and shell."""

    PASS = 0
    REGRESSION = 1
    INFRA = 3
    INCONCLUSIVE = 4


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One assertion on a run: what was looked at, what came out, in words and figures, and about which ids.

    `status`: `pass`; `fail` (REGRESSION); `inconclusive` (the run can not tell); `infra` (the records it needs can not
    be had); `not run` (this scenario or stack does not carry it; never counts as passed).
    """

    name: str
    status: Literal["pass", "fail", "inconclusive", "infra", "not run"]
    reason: str
    figures: dict[str, Any] = field(default_factory=dict)
    ids: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a run and everything that led to it."""

    outcome: Outcome
    message: str
    checks: tuple[CheckResult, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.outcome.name,
            "exit_code": self.outcome.value,
            "message": self.message,
            "checks": [asdict(c) for c in self.checks],
        }


REQUIRED = ("counter", "ledger", "non-vacuity", "loss-oracle")
REQUIRED_PLUMBING = ("counter", "ledger")


def conclude(checks: Sequence[CheckResult], *, plumbing_only: bool) -> Verdict:
    """The verdict over all checks; PASS needs the required ones to have run and passed."""
    by_status = {s: [c for c in checks if c.status == s] for s in ("fail", "infra", "inconclusive")}
    ran = {c.name for c in checks if c.status != "not run"}
    missing = [n for n in (REQUIRED_PLUMBING if plumbing_only else REQUIRED) if n not in ran]
    if by_status["fail"]:
        outcome, causes = Outcome.REGRESSION, by_status["fail"]
    elif by_status["infra"]:
        outcome, causes = Outcome.INFRA, by_status["infra"]
    elif by_status["inconclusive"] or missing:
        outcome, causes = Outcome.INCONCLUSIVE, by_status["inconclusive"]
    else:
        outcome, causes = Outcome.PASS, []
    words = [f"{c.name}: {c.reason}" for c in causes]
    if outcome is Outcome.INCONCLUSIVE and missing:
        words.append(f"did not run: {', '.join(missing)}")
    if not words:
        scope = "plumbing only: this scenario carries no signal" if plumbing_only else "all checks that ran passed"
        words = [scope]
    return Verdict(outcome=outcome, message="; ".join(words), checks=tuple(checks))
