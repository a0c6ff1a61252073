"""The automations of a server: a notice for the first run of each cause, one when a night gave no verdict, and the end
of runs whose host does not come back."""

from collections.abc import Sequence
from typing import Any

from infra.deploy.deployments import ENTRYPOINTS, NIGHTLY_FLOW, NIGHTLY_NAME
from infra.deploy.matrix import Nightly
from infra.records.verdict import Outcome

RED_EVENT, CAUSE = "fanline.run.red", "fanline.cause"
FIRST_OF_A_CAUSE, NO_NIGHT = "fanline: first run of a cause", "fanline: no verdict of a night"
SILENT_RUN = "fanline: run of a host that does not come back"
# Ten beats of a run (`infra.pool.worker_config`): a busy server takes events late, and a run that lives is no crash.
SILENT_SECONDS = 600.0


def automations(nightly: Nightly, notify: str | None) -> dict[str, dict[str, Any]]:
    """Documents of Prefect automations by name.

    Args:
        notify: id of a notification block; None leaves `actions` out: they are then kept as they are on the server.
    """
    return {
        FIRST_OF_A_CAUSE: {
            "description": "A run ended red for a cause that was not told since the scenario was last green.",
            "enabled": True,
            "trigger": first_of_a_cause(),
            **_actions(notify, "{{ event.resource.name }} is red", _RED),
        },
        NO_NIGHT: {
            "description": f"{NIGHTLY_FLOW}/{NIGHTLY_NAME} gave no verdict in {nightly.notice_after_hours:g} hours.",
            "enabled": True,
            "trigger": no_verdict(nightly.notice_after_hours * 3600),
            **_actions(notify, "fanline: no nightly verdict", _MISSING),
        },
        SILENT_RUN: {
            "description": "Without a worker of its host nobody else can tell that a run has ended.",
            "enabled": True,
            "trigger": silent_run(SILENT_SECONDS),
            "actions": [_crash(f"Nothing was heard of it for {SILENT_SECONDS:g} s: its host is down or cut off.")],
        },
    }


_RED = (
    "{{ event.resource['fanline.verdict'] }} {{ event.resource['fanline.checks'] }}\n"
    "{{ event.payload.reason }}\n{{ event.payload.run }}"
)
_MISSING = "The nightly did not run, or did not come to a verdict. Look at its deployment, its pool and its workers."


def first_of_a_cause() -> dict[str, Any]:
    """Reacts to each red run that its memory knows to be the first."""
    return _trigger(
        match={"prefect.resource.id": f"{CAUSE}.*", "fanline.first": "true"},
        match_related={},
        expect=[RED_EVENT],
        posture="Reactive",
        within_seconds=0.0,
    )


def no_verdict(within_seconds: float) -> dict[str, Any]:
    """Fires where no night has ended with a verdict for so long: the server sees it, whatever has become of workers."""
    return _trigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=[
            {"prefect.resource.role": "deployment", "prefect.resource.name": NIGHTLY_NAME},
            {"prefect.resource.role": "flow", "prefect.resource.name": NIGHTLY_FLOW},
        ],
        expect=sorted(f"prefect.flow-run.{outcome.name}" for outcome in Outcome),
        posture="Proactive",
        within_seconds=within_seconds,
    )


def silent_run(within_seconds: float) -> dict[str, Any]:
    """Fires for a flow run that was heard of by a heartbeat, and then by nothing, not even by the state it ended in.

    Of fanline's flows only: a server is shared, and others may beat as they like.
    """
    return _trigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.role": "flow", "prefect.resource.name": sorted(ENTRYPOINTS)},
        after=["prefect.flow-run.heartbeat"],
        expect=["prefect.flow-run.*"],
        for_each=["prefect.resource.id"],
        posture="Proactive",
        within_seconds=within_seconds,
    )


def _trigger(
    *,
    match: Any,
    match_related: Any,
    expect: list[str],
    posture: str,
    within_seconds: float,
    after: Sequence[str] = (),
    for_each: Sequence[str] = (),
) -> Any:
    return {
        "type": "event",
        "match": match,
        "match_related": match_related,
        "after": list(after),
        "expect": expect,
        "for_each": list(for_each),
        "posture": posture,
        "threshold": 1,
        "within": within_seconds,
    }


def _crash(message: str) -> dict[str, Any]:
    return {"type": "change-flow-run-state", "name": None, "state": "CRASHED", "message": message, "force": True}


def _actions(notify: str | None, subject: str, body: str) -> dict[str, Any]:
    if notify is None:
        return {}
    return {
        "actions": [{"type": "send-notification", "block_document_id": notify, "subject": subject, "body": body}],
    }
