"""What happens when a process of a run is killed in the middle of it."""

import os
import signal
from pathlib import Path

import pytest

from infra.chaos.processes import of_home, wait_until
from tests.flows.conftest import ended
from tests.flows.slow_run import Start, start_slow, wait_for_a_rollout

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.trainer, pytest.mark.prefect]


def process_of(home: Path, name: str) -> int:
    found = [pid for pid, command in of_home(home).items() if name in command and "supervisor.py" not in command]
    assert found, f"no process {name}: {of_home(home)}"
    return found[0]


OTHER_WAYS = ("engine.servers=2", "engine.weight_sync=distributed", "training.recompute=true")


@pytest.mark.parametrize("settings", [(), OTHER_WAYS], ids=["one server", "two servers, weights by a group, recompute"])
def test_a_killed_engine_is_replaced_and_the_run_ends_as_if_nothing_had_been(
    settings: tuple[str, ...], start_run: Start, undisturbed: str, tmp_path: Path
):
    process = start_slow(start_run, tmp_path, *(f"--set={one}" for one in settings))
    wait_for_a_rollout(tmp_path)
    os.kill(process_of(tmp_path, "infra.sglang.launch"), signal.SIGKILL)
    result = ended(process)
    assert result.code == 0, result.errors
    assert result.summary and result.summary["weights_digest"] == undisturbed
    assert wait_until(lambda: not of_home(tmp_path), 15), of_home(tmp_path)


def test_a_killed_run_leaves_nothing_and_goes_on_where_it_was(start_run: Start, undisturbed: str, tmp_path: Path):
    process = start_slow(start_run, tmp_path)
    wait_for_a_rollout(tmp_path)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not of_home(tmp_path), 15), of_home(tmp_path)
    run_id = next(p.name for p in (tmp_path / "store" / "runs").iterdir())
    result = ended(start_slow(start_run, tmp_path, "--resume", run_id))
    assert result.code == 0, result.errors
    assert result.summary and result.summary["run"] == run_id
    assert result.summary["weights_digest"] == undisturbed


def test_a_killed_trainer_rank_is_infra_with_a_reason(start_run: Start, tmp_path: Path):
    process = start_slow(start_run, tmp_path)
    wait_for_a_rollout(tmp_path)
    os.kill(process_of(tmp_path, "ray::TrainerRank"), signal.SIGKILL)
    result = ended(process)
    assert result.code == 3 and result.summary, result.errors
    assert result.summary["verdict"] == "INFRA" and "rank" in result.summary["message"]
    assert wait_until(lambda: not of_home(tmp_path), 15), of_home(tmp_path)
