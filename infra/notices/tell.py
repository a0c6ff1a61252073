"""Tell that an unattended run is red, as a Prefect event; an automation makes a notice of the first of each cause."""

from collections.abc import Sequence
from logging import Logger, LoggerAdapter
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.logging.loggers import flow_run_logger
from prefect.runtime import deployment, flow_run

from infra.deploy.automations import CAUSE, RED_EVENT
from infra.errors import StoreUnavailable
from infra.nightly.judge import Ended
from infra.notices.causes import Cause, cause_of
from infra.notices.memory import forget, remember
from infra.open_run import absolute
from infra.records.verdict import Outcome, Verdict
from infra.run import Run
from infra.settings import settings
from infra.store import ArtifactStore

REASON_CHARACTERS = 2000


def tell_cause(run: Run, verdict: Verdict) -> None:
    """Of a red run of a deployment: the event. Of a green one: nothing, but causes count as new from here on.

    A run that a person started at a terminal (`fanline run`) tells nobody: that person is there.
    """
    if deployment.id is not None:
        _tell(run.store, run.scenario.name, cause_of(run.scenario.name, verdict), run.run_id, get_run_logger())


def tell_silent_children(ended: Sequence[Ended], store_uri: str | None) -> None:
    """A night tells of the scenarios whose runs could not do it themselves: cancelled, crashed, never started."""
    store = ArtifactStore(absolute(store_uri or settings().store_uri))
    for one in ended:
        if not one.verdict and one.outcome is not Outcome.PASS and deployment.id is not None:
            cause = Cause(scenario=one.scenario, verdict=one.outcome.name, checks=(), reason=one.message)
            told_by = one.flow_run_id or f"{flow_run.get_id()}:{one.scenario}"
            _tell(store, one.scenario, cause, told_by, get_run_logger())


def tell_crash(store: ArtifactStore, scenario: str, run_id: str, run: Any, state: Any) -> None:
    """Of a deployment's run that crashed: what ended its process, from whoever found it. A night tells of its own.

    Args:
        run: the flow run of Prefect; `state` the one that it ended in.
    """
    of_a_night = run.parent_task_run_id is not None
    if state.type == StateType.CRASHED and run.deployment_id is not None and not of_a_night:
        reason = f"{state.name}: {state.message or 'nobody said why'}"
        cause = Cause(scenario=scenario, verdict="INFRA", checks=(), reason=reason)
        _tell(store, scenario, cause, run_id, flow_run_logger(run))


def _tell(
    store: ArtifactStore, scenario: str, cause: Cause | None, run_id: str, logger: Logger | LoggerAdapter
) -> None:
    try:
        if cause is None:
            forget(store, scenario, run_id)
            return
        first = remember(store, cause, run_id)
    except StoreUnavailable as lost:
        logger.error("The memory of notices is not available: %s", lost)
        if cause is None:
            return
        first = True  # told twice is better than not at all
    emit_event(
        event=RED_EVENT,
        id=uuid5(NAMESPACE_URL, f"{run_id}:{cause.fingerprint}"),
        resource={
            "prefect.resource.id": f"{CAUSE}.{cause.fingerprint}",
            "prefect.resource.name": scenario,
            "fanline.first": "true" if first else "false",
            "fanline.verdict": cause.verdict,
            "fanline.checks": ",".join(cause.checks),
        },
        payload={"reason": cause.reason[:REASON_CHARACTERS], "run": run_id},
    )
