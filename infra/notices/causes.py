"""Causes of red runs: what makes two of them the same one, and which were told since the last green run. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infra.records.verdict import Outcome, Verdict
from infra.store import canonical_json, sha256

FOLDER, GREEN = "notices", "green.json"
_ID = re.compile(r"\b(?=\w*\d)[0-9a-f]{6,}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I)
_RUN = re.compile(r"\b[a-z0-9][a-z0-9-]*-[0-9a-f]{12}\b")
_PATH = re.compile(r"(?<!\w)(?:\w+:/)?/[^\s'\",;)]+")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?!\w)", re.I)
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a scenario is red: the checks and the reason in words. `fingerprint` leaves ids, paths and figures out."""

    scenario: str
    verdict: str
    checks: tuple[str, ...]
    reason: str

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits; equal for the same checks and words, whatever the ids and figures in them."""
        said = [self.scenario, self.verdict, sorted(self.checks), stripped(self.reason)]
        return sha256(canonical_json(said))[:16]


def stripped(reason: str) -> str:
    """The words of a reason without what differs from run to run.

    Example: "step 3 of tiny-0123456789ab: error 2.6e-06" -> "step # of #: error #"
    """
    for pattern in (_RUN, _PATH, _NUMBER, _ID, _DIGITS):
        reason = pattern.sub("#", reason)
    # A list of ids is one thing, however long: "[#, #, #]" and "[#]".
    return " ".join(re.sub(r"#(?:\s*[,;]?\s*#)+", "#", reason).split()).lower()


def cause_of(scenario: str, verdict: Verdict) -> Cause | None:
    """The cause of a run that is not green; None for PASS."""
    if verdict.outcome is Outcome.PASS:
        return None
    bad = {"REGRESSION": "fail", "INFRA": "infra", "INCONCLUSIVE": "inconclusive"}[verdict.outcome.name]
    checks = tuple(check.name for check in verdict.checks if check.status == bad)
    return Cause(scenario=scenario, verdict=verdict.outcome.name, checks=checks, reason=verdict.message)


def era(keys: Sequence[str], scenario: str) -> int:
    """How often a green run came after red ones: causes are remembered until the next time.

    Args:
        keys: everything under `notices/<scenario>` in the store.
    """
    return sum(key == green_key(scenario, number) for number, key in enumerate(_greens(keys)))


def _greens(keys: Iterable[str]) -> list[str]:
    return sorted(key for key in keys if key.endswith(f"/{GREEN}"))


def cause_key(scenario: str, number: int, fingerprint: str) -> str:
    """Where the memory of a cause is: its conditional create decides who tells it."""
    return f"{FOLDER}/{scenario}/{number:06d}/cause-{fingerprint}.json"


def green_key(scenario: str, number: int) -> str:
    """What ends an era."""
    return f"{FOLDER}/{scenario}/{number:06d}/{GREEN}"


def has_causes(keys: Iterable[str], scenario: str, number: int) -> bool:
    """Whether something was red in this era: only then does a green run end it."""
    prefix = f"{FOLDER}/{scenario}/{number:06d}/cause-"
    return any(key.startswith(prefix) for key in keys)
