"""A flow that ends as it is told to, at once: children of a night without engines."""

import os
import signal
import time
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from infra.ended_run import mark_ended

ENTRYPOINT = "tests.flows.light_regression.light"


@flow(name="fanout-regression", persist_result=False, on_cancellation=[mark_ended], on_crashed=[mark_ended])
def light(scenario: dict[str, Any], ends: str, seconds: float = 0.0, store: str | None = None) -> State:
    """End as PASS or another verdict, by an exception or a kill -9, after some seconds. `store` is for its notices."""
    time.sleep(seconds)
    if ends == "exception":
        raise RuntimeError("the disk of host 7 is full")
    if ends == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    message = f"{scenario['name']}-0123456789ab: " + ("all well" if ends == "PASS" else "step 3 differs by 0.25")
    return (Completed if ends == "PASS" else Failed)(name=ends, message=message)
