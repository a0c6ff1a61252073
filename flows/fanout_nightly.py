"""A night: every scenario of the matrix as a run of its own deployment, and one verdict over all of them.

     too late? ─▶ start the children ─▶ wait for each ─▶ read its state ─▶ table ─▶ one verdict
                  (gpu-4's queue)       limits                            notices

The parent needs no GPU and waits in a pool of its own. A retry of it starts nothing that was started before; whatever
ended without a verdict counts as INFRA, never as a pass.
"""

from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import Field

from flows.verdict_state import ends_in_words
from infra.nightly.children import cancel_children, start_children, wait_for_children
from infra.nightly.night import as_state, hours_late, stale
from infra.nightly.table import publish_table
from infra.notices.tell import tell_silent_children


@flow(name="fanout-nightly", persist_result=False, on_cancellation=[cancel_children])
@ends_in_words
def fanout_nightly(
    scenarios: Annotated[list[str], Field(min_length=1)],
    queue: str | None = None,
    stale_after_hours: Annotated[float, Field(gt=0)] = 6.0,
    child_hours: Annotated[float, Field(gt=0)] = 4.0,
    pick_up_minutes: Annotated[float, Field(gt=0)] = 60.0,
    poll_seconds: Annotated[float, Field(gt=0)] = 5.0,
    store: str | None = None,
) -> State:
    """Run every scenario and give one verdict: the worst of theirs.

    Args:
        scenarios: names of deployments of fanout-regression.
        queue: queue of their pool that the children wait in; by default each deployment's own.
        stale_after_hours: started later than this after its time, the night runs nothing and is STALE.
        child_hours: longest that one scenario may run; then it is cancelled and counts as INFRA.
        pick_up_minutes: longest that a child may wait while none of the others runs; then likewise.
        poll_seconds: time between two looks at the children.
        store: artifact store of the notices; by default the one of this deployment.
    """
    if (late := hours_late()) > stale_after_hours:
        return stale(late, stale_after_hours)
    children = start_children(scenarios, queue)
    ended = wait_for_children(children, child_hours * 3600, pick_up_minutes * 60, poll_seconds)
    publish_table(ended)
    tell_silent_children(ended, store)
    return as_state(ended)
