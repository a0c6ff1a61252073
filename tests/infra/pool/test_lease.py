"""The lease of a run inside a flow: nothing without a pool, all its GPUs with one, and a reason when there are none."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from infra.errors import ConfigurationError
from infra.pool.board import artifact_key, artifact_rows, board
from infra.pool.history import read_history
from infra.pool.hold import NoGpus, command_lease
from infra.pool.inventory import cuda_environment, inventory
from infra.pool.lease import gpu_lease
from infra.pool.leases import TOKEN, Lease, LeaseFolder
from infra.pool.process import host_name
from infra.run import Run
from infra.scenario.load import load
from infra.settings import Settings
from infra.stopwatch import Stopwatch
from tests.infra.pool.agent import claim

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect")]

SEE = f"import os; print(os.environ.get('{TOKEN}', 'none'))"


def of_tiny(folder: Path) -> Run:
    return Run(run_id="tiny-1", scenario=load("tiny"), store_uri=str(folder / "store"), spool=folder)


def inside(run: Run, timer: Stopwatch, work: Callable[[Any], Any]) -> Any:
    """What `work` gives under the run's lease, in a flow."""

    @flow(name="lease-test", persist_result=False)
    def leases() -> None:
        with gpu_lease(run, timer) as gpus:
            given.append(work(gpus))

    given: list[Any] = []
    leases()
    return given[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FANLINE_LEASE_DIR", str(tmp_path / "leases"))
    return tmp_path


def test_without_a_pool_a_host_without_gpus_leases_nothing(folder: Path):
    timer = Stopwatch()
    assert inside(of_tiny(folder), timer, lambda gpus: gpus) == ()
    assert not (folder / "leases").exists() and timer.seconds == {}


def test_a_run_holds_one_gpu_a_rank_and_all_that_it_starts_carries_its_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "4")
    seen: dict[str, Any] = {}

    def work(gpus: Any) -> int:
        seen["child"] = subprocess.run([sys.executable, "-c", SEE], capture_output=True, text=True, check=True).stdout
        seen["board"] = board(Settings())  # type: ignore[call-arg]
        return len(gpus)

    assert inside(of_tiny(folder), Stopwatch(), work) == load("tiny").training.world_size == 2
    taken, given = [e for e in read_history(folder / "leases" / "history.jsonl") if e["event"] in ("taken", "given")]
    assert seen["child"].strip() == taken["token"] == given["token"]
    assert TOKEN not in os.environ
    assert seen["board"]["free"] == 2 and [g["run"] for g in seen["board"]["gpus"]] == ["tiny-1", "tiny-1", None, None]
    assert board(Settings())["free"] == 4  # type: ignore[call-arg]


def test_a_run_that_gets_no_gpus_in_time_says_who_has_them(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "3")
    monkeypatch.setenv("FANLINE_LEASE_DEADLINE", "0.1")
    now = Settings()  # type: ignore[call-arg]
    gpus = inventory(now).gpus
    leases = LeaseFolder(now.lease_dir, free_mib=0)
    lease = leases.try_take(*leases.join(claim("other", 2, candidates=[g.id for g in gpus])), gpus, dict)
    assert isinstance(lease, Lease)
    with pytest.raises(NoGpus, match=r"waits for 2 of 3 GPUs.* next in line, 1 free; GPU 0: run other \(2 GPUs since"):
        inside(of_tiny(folder), Stopwatch(), lambda gpus: gpus)
    assert board(now)["waiting"] == []
    leases.give_back(lease)


def test_a_command_stands_in_the_same_line_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`replay` and `drill` start trainer ranks too."""
    with command_lease("drill", load("tiny")):
        assert not (folder / "leases").exists()
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "4")
    with command_lease("drill", load("tiny")):
        assert board(Settings())["free"] == 2  # type: ignore[call-arg]
    assert board(Settings())["free"] == 4  # type: ignore[call-arg]
    assert "fanline: drill holds 2 GPUs (0, 1)" in capsys.readouterr().err


def test_a_command_that_needs_more_gpus_than_the_host_has_is_refused_and_does_not_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "1")
    with (
        pytest.raises(ConfigurationError, match=r"drill needs 2 GPUs.* has 1 logical"),
        command_lease("drill", load("tiny")),
    ):
        pass


def test_the_board_is_a_table_of_gpus_and_of_the_line(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "2")
    now = Settings()  # type: ignore[call-arg]
    gpus = inventory(now).gpus
    leases = LeaseFolder(now.lease_dir, free_mib=0)
    lease = leases.try_take(*leases.join(claim("first", 2, candidates=[g.id for g in gpus])), gpus, dict)
    place = leases.join(claim("second", 1, candidates=[g.id for g in gpus]))
    rows = artifact_rows(board(now))
    assert [(row["what"], row["run"]) for row in rows] == [
        ("GPU 0 (cpu)", "first"),
        ("GPU 1 (cpu)", "first"),
        ("place 1 in line", "second"),
    ]
    leases.leave(*place)
    assert isinstance(lease, Lease)
    leases.give_back(lease)


def test_the_board_has_a_key_that_prefect_takes():
    assert artifact_key("Node_7.example.org") == "gpu-pool-node-7-example-org"
    assert artifact_key(host_name()).startswith("gpu-pool-")


def test_devices_are_named_by_number_in_the_order_of_the_bus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "4")
    gpus = inventory(Settings()).gpus  # type: ignore[call-arg]
    assert cuda_environment(gpus[1:3]) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,2"}
