"""What the end of a child run says, and the one verdict of a night. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from infra.records.verdict import Outcome

WORST_FIRST = (Outcome.REGRESSION, Outcome.INFRA, Outcome.INCONCLUSIVE, Outcome.PASS)
SHOWN_CHARACTERS = 300
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{12}: ")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the run of one scenario ended.

    `verdict` is False where the run itself gave none (cancelled, crashed, never started): then nobody has told its
    cause yet. `seconds` is the time it ran; None where it never did.
    """

    scenario: str
    outcome: Outcome
    message: str
    verdict: bool = True
    run_id: str | None = None
    flow_run_id: str | None = None
    seconds: float | None = None
    plumbing_only: bool = False


def judged(kind: str, name: str, message: str) -> tuple[Outcome, str, bool]:
    """Outcome, words, and whether they are the run's own verdict: then they begin with its id, and it told its cause.

    Args:
        kind: Prefect's type of the final state (`COMPLETED`, `FAILED`, `CANCELLED`, `CRASHED`).
        name: the state's name: a verdict where the run came to one.
        message: the state's message.
    """
    if name in Outcome.__members__ and (name == "PASS") == (kind == "COMPLETED"):
        return Outcome[name], message, RUN_ID.match(message) is not None
    if kind == "COMPLETED":
        return Outcome.INFRA, f"ended as {name} without a verdict", False
    how = {"CANCELLED": "was cancelled", "CRASHED": "crashed"}.get(kind, f"ended as {name}")
    return Outcome.INFRA, f"{how}: {message}" if message else how, False


def verdict_of(ended: Sequence[Ended]) -> Outcome:
    """The worst outcome of a night; of no runs at all nothing can be said."""
    outcomes = {one.outcome for one in ended}
    return next((outcome for outcome in WORST_FIRST if outcome in outcomes), Outcome.INCONCLUSIVE)


def message_of(ended: Sequence[Ended]) -> str:
    """The night in a sentence: how many passed, every other one with its reason, and who carries no signal."""
    passed = [one for one in ended if one.outcome is Outcome.PASS]
    parts = [f"{len(passed)} of {len(ended)} scenarios passed"]
    for outcome in WORST_FIRST[:-1]:
        parts += [
            f"{one.scenario}: {outcome.name}: {one.message[:SHOWN_CHARACTERS]}"
            for one in ended
            if one.outcome is outcome
        ]
    if plumbing := [one.scenario for one in passed if one.plumbing_only]:
        parts.append(f"plumbing only, without signal: {', '.join(plumbing)}")
    return "; ".join(parts)
