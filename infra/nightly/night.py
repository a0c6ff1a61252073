"""A night as a Prefect state."""

from collections.abc import Sequence

import prefect.types._datetime as clock
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from infra.nightly.judge import Ended, message_of, verdict_of
from infra.records.verdict import Outcome

STALE = "STALE"


def hours_late() -> float:
    """Hours between the time this run was scheduled for and now; 0 for a retry, which a person asks for knowingly."""
    if flow_run.get_run_count() > 1:
        return 0.0
    late = clock.now("UTC") - flow_run.get_scheduled_start_time()
    return late.total_seconds() / 3600


def stale(late_hours: float, limit_hours: float) -> State:
    """A night that nobody waits for any more: it ran nothing, and is no verdict."""
    words = f"{late_hours:.1f} h late, more than {limit_hours:g} h: nothing was run. The next night runs as planned."
    return Cancelled(name=STALE, message=words)


def as_state(ended: Sequence[Ended]) -> State:
    """Completed for PASS, Failed for everything else; named by the verdict."""
    verdict = verdict_of(ended)
    kind = Completed if verdict is Outcome.PASS else Failed
    return kind(name=verdict.name, message=message_of(ended)[:2000])
