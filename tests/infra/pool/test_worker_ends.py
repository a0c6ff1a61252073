"""A worker that is asked to end, or killed: its runs end with it, go on elsewhere, and nobody shows them as running."""

import os
import signal
from collections.abc import Callable

import pytest
from prefect.client.schemas.objects import StateType

from infra.chaos.processes import wait_until
from infra.supervisor import stop
from tests.infra.pool.worker_fixture import LIMIT, Pool, left

pytestmark = pytest.mark.prefect

GONE_SECONDS = 15.0


def test_a_run_is_rescheduled_by_a_worker_that_ends_and_crashed_by_one_that_is_killed(
    new_pool: Callable[[str], Pool],
):
    pool = new_pool("gpu-ends")
    first = pool.start_worker("first")
    run = pool.submit("moved", gpus=4, seconds=600.0, child=600.0)
    pool.wait_started("moved")
    process = pool.process(run)
    os.kill(process.worker.pid, signal.SIGTERM)
    assert wait_until(lambda: not left(process.attempt), GONE_SECONDS), left(process.attempt)
    assert first.wait(LIMIT) == 0
    state = pool.run(run).state
    assert state and (state.type, state.name) == (StateType.SCHEDULED, "AwaitingRetry")
    assert "Crashed" not in pool.states(run)

    (pool.folder / "moved.started").unlink()
    second = pool.start_worker("second")
    pool.wait_started("moved")
    assert wait_until(lambda: pool.process(run) != process, LIMIT)
    process = pool.process(run)
    os.kill(process.worker.pid, signal.SIGKILL)  # its supervisor kills all of it: nobody is left to report
    second.wait(LIMIT)
    assert wait_until(lambda: not left(process.attempt), GONE_SECONDS), left(process.attempt)
    assert pool.run(run).state_name == "Running", "nobody knows yet"

    third = pool.start_worker("third")
    crashed = pool.wait_state(run, "Crashed")
    assert f"of worker {process.worker} has ended; 0 processes were left" in str(crashed.message)
    assert stop(third, LIMIT) == 0
