"""A worker that is asked to end, or killed: its runs end with it, go on elsewhere, and nobody shows them as running."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from infra.chaos.processes import wait_until
from infra.chaos.services import prefect_server
from infra.supervisor import stop
from tests.infra.pool.worker_fixture import LIMIT, Pool, ask, left, new_pool_in

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


def test_a_cancel_after_the_server_was_away_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Prefect's observer of cancellations has given up by then: it says so in the worker's log."""
    with prefect_server(tmp_path) as server, temporary_settings({PREFECT_API_URL: server.url}):
        monkeypatch.setenv("PREFECT_API_URL", server.url)
        monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
        pool = new_pool_in(tmp_path, "gpu-away")
        worker = pool.start_worker("steady")
        run = pool.submit("cancelled", gpus=4, seconds=600.0, child=600.0)
        pool.wait_started("cancelled")
        attempt = pool.process(run).attempt
        server.kill()
        log = tmp_path / "steady.log"
        assert wait_until(lambda: "Cancellation polling task failed" in log.read_text(), LIMIT), log.read_text()
        server.start()
        assert left(attempt), "a run outlives its server's restart"
        ask(lambda client: client.set_flow_run_state(run, Cancelling()))
        pool.wait_state(run, "Cancelled")
        assert left(attempt) == []
        assert stop(worker, LIMIT) == 0
