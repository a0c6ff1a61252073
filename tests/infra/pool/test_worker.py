"""Runs of a worker on a real Prefect server: whatever happens to one, nothing is left and its state is true."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling

from infra.chaos.processes import wait_until
from infra.pool.history import over_committed, read_history
from infra.supervisor import stop
from tests.infra.pool.worker_fixture import LIMIT, Pool, ask, left

pytestmark = pytest.mark.prefect

NewPool = Callable[[str], Pool]
GONE_SECONDS = 15.0
LONG = {"gpus": 4, "seconds": 600.0, "child": 600.0}


@pytest.fixture(scope="module")
def pool(new_pool: NewPool) -> Pool:
    return new_pool("gpu-runs")


@pytest.fixture(scope="module")
def steady_worker(pool: Pool) -> Iterator[None]:
    """A worker for the cases that leave it alone."""
    process = pool.start_worker("steady")
    yield
    stop(process, LIMIT)


@pytest.mark.parametrize(
    ("job_variables", "words"),
    [
        ({"gpus": 9}, ("asks for 9 GPUs", "has 4 logical ones")),
        ({"labels": {"accelerator": "h200"}}, ("asks for accelerator h200", "has cpu")),
        ({"labels": {"memory": 100000.0}}, ("asks for GPUs of 100000 GiB", "has 4 of")),
        (
            {"env": {"FANLINE_HOOK_PACKAGES": "os", "PYTHONPATH": "/tmp"}},
            ("env sets FANLINE_HOOK_PACKAGES, PYTHONPATH", "only the worker's host may set"),
        ),
        ({"working_dir": "/nowhere/at/all"}, ("working_dir is /nowhere/at/all", "has no such folder")),
    ],
)
@pytest.mark.usefixtures("steady_worker")
def test_a_run_that_the_host_can_not_serve_is_refused_in_words(pool: Pool, job_variables: dict, words: tuple):
    refused = pool.wait_state(pool.submit("refused", job_variables), "Refused")
    assert refused.type == StateType.FAILED
    assert refused.message and all(part in refused.message for part in words)


@pytest.mark.parametrize("job_variables", [{"gpus": -1}, {"gpus": "two"}, {"labels": {"count": "many"}}])
def test_a_wrong_field_is_refused_by_the_server(pool: Pool, job_variables: dict):
    with pytest.raises(PrefectHTTPStatusError, match=next(iter(job_variables))):
        pool.submit("wrong", job_variables)


@pytest.mark.usefixtures("steady_worker")
def test_cancel_ends_everything_and_the_next_run_gets_the_gpus(pool: Pool):
    cancelled = pool.submit("cancelled", **LONG)
    pool.wait_started("cancelled")
    attempt = pool.process(cancelled).attempt
    assert len(left(attempt)) >= 3, "supervisor, flow and its child in another session"
    ask(lambda client: client.set_flow_run_state(cancelled, Cancelling()))
    assert wait_until(lambda: not left(attempt), GONE_SECONDS), left(attempt)
    pool.wait_state(cancelled, "Cancelled")
    assert pool.states(cancelled)[-3:] == ["Running", "Cancelling", "Cancelled"]
    pool.wait_state(pool.submit("after", gpus=4, seconds=0.0), "Completed")
    assert over_committed(read_history(pool.folder / "leases" / "history.jsonl")) == []


@pytest.mark.usefixtures("steady_worker")
def test_a_killed_flow_process_is_crashed_and_leaves_nothing(pool: Pool):
    killed = pool.submit("killed", **LONG)
    process = pool.wait_started("killed")
    attempt = pool.process(killed).attempt
    os.kill(process, signal.SIGKILL)
    assert wait_until(lambda: not left(attempt), GONE_SECONDS), left(attempt)
    assert "137" in str(pool.wait_state(killed, "Crashed").message)
