"""Which events an automation takes, by Prefect's own rule."""

from typing import Any
from uuid import uuid4

import pytest
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.types._datetime import now

from infra.deploy.automations import silent_run


def event(name: str, related: list[dict[str, str]]) -> ReceivedEvent:
    resource: Any = {"prefect.resource.id": f"prefect.flow-run.{uuid4()}", "prefect.resource.name": "fanout-regression"}
    return ReceivedEvent(event=name, resource=resource, related=related, id=uuid4(), occurred=now("UTC"))  # type: ignore[arg-type]


def of(role: str, name: str) -> dict[str, str]:
    return {"prefect.resource.id": f"prefect.{role}.1", "prefect.resource.role": role, "prefect.resource.name": name}


@pytest.mark.parametrize("name", ["prefect.flow-run.heartbeat", "prefect.flow-run.Crashed"])
def test_a_silent_run_is_one_of_fanlines_flows(name: str):
    trigger = EventTrigger.model_validate(silent_run(10.0))
    queue = of("work-queue", "default")
    assert trigger.covers(event(name, [queue, of("flow", "fanout-regression")]))
    assert trigger.covers(event(name, [of("flow", "fanout-nightly"), queue]))
    assert not trigger.covers(event(name, [queue, of("flow", "somebody-elses")]))
    assert not trigger.covers(event(name, [of("deployment", "fanout-regression"), of("flow", "somebody-elses")]))
    assert not trigger.covers(event(name, []))
