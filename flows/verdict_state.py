"""A verdict as a Prefect state, so that the UI, Retry and automations see the truth."""

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from infra.records.verdict import Outcome, Verdict
from infra.run import Run


def as_state(run: Run, verdict: Verdict) -> State:
    """Completed for PASS, Failed for everything else; the verdict is the state's name and the causes its message."""
    kind = Completed if verdict.outcome is Outcome.PASS else Failed
    return kind(name=verdict.outcome.name, message=f"{run.run_id}: {verdict.message}"[:2000])
