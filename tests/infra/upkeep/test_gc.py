"""`fanline gc` on a folder and on a real S3 server."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.run_lock import hold
from infra.store import ArtifactStore
from infra.upkeep.gc import left_folders, stored_runs
from tests.s3_servers import moto, using

ROOT = Path(__file__).parents[3]


def fill(store: ArtifactStore) -> None:
    for run in ("tiny-000000000001", "tiny-000000000002", "fanout-signal-000000000003"):
        store.publish_json(f"runs/{run}/run.json", {"run": run})
        store.publish(f"runs/{run}/iterations/0000/x.bin", b"x" * 1000)
    store.publish_json("baselines/tiny/0001.json", {"run": "tiny-000000000001"})


def fanline_gc(store: ArtifactStore, home: Path, *arguments: str) -> dict:
    env = {**os.environ, "FANLINE_HOME": str(home)}
    env.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "infra.cli", "gc", "--store", store.uri, "--days", "0", "--keep", "0", *arguments]
    ended = subprocess.run([*command, "--json"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


@pytest.fixture
def bucket() -> Iterator[ArtifactStore]:
    with moto() as server, using(server.environment):
        yield ArtifactStore("s3://fanline/nightly")


def check_gc(store: ArtifactStore, home: Path) -> None:
    fill(store)
    (home / "spool" / "tiny-000000000002").mkdir(parents=True)
    before = store.keys("")
    shown = fanline_gc(store, home)
    assert not shown["removed"] and store.keys("") == before
    assert [e["run"] for e in shown["expired"]] == ["tiny-000000000002", "fanout-signal-000000000003"]
    assert shown["held"] == {"tiny-000000000001": "baseline"}
    assert fanline_gc(store, home, "--yes")["removed"]
    assert sorted({key.split("/")[1] for key in store.keys("runs")}) == ["tiny-000000000001"]
    assert store.keys("baselines") and not (home / "spool" / "tiny-000000000002").exists()


def test_a_dry_run_removes_nothing_and_yes_does(folder: ArtifactStore, tmp_path: Path):
    check_gc(folder, tmp_path / "home")
    assert sorted(p.name for p in Path(folder.path("runs")).iterdir()) == ["tiny-000000000001"]


@pytest.mark.s3
def test_a_bucket_is_treated_the_same(bucket: ArtifactStore, tmp_path: Path):
    check_gc(bucket, tmp_path / "home")


def test_a_run_that_somebody_works_on_is_held(folder: ArtifactStore, tmp_path: Path):
    fill(folder)
    hold("tiny-000000000002", tmp_path / "spool" / "tiny-000000000002")
    held = {r.run_id: r.held_by for r in stored_runs(folder, tmp_path / "spool")}
    assert held == {
        "tiny-000000000001": "baseline",
        "tiny-000000000002": "running",
        "fanout-signal-000000000003": None,
    }


def test_folders_of_runs_that_the_store_does_not_have_go_when_they_are_old(folder: ArtifactStore, tmp_path: Path):
    fill(folder)
    home, spool, now = tmp_path / "home", tmp_path / "home" / "spool", time.time()
    days = {"tiny-000000000001": 9.0, "tiny-00000000000a": 9.0, "tiny-00000000000b": 1.0, "tiny-00000000000d": 9.0}
    for name, age in days.items():
        (spool / name).mkdir(parents=True)
        (spool / name / "engine.log").touch()
        (spool / name / "store").write_text("/another/store" if name.endswith("d") else folder.uri)
        for path in (*(spool / name).iterdir(), spool / name):
            os.utime(path, (now - age * 86_400, now - age * 86_400))
    (spool / "prefect-server.log").touch()
    runs = stored_runs(folder, spool)
    assert [p.name for p in left_folders(folder, runs, spool, now - 5 * 86_400)] == ["tiny-00000000000a"]
    hold("tiny-00000000000b", spool / "tiny-00000000000b")
    shown = fanline_gc(folder, home, "--yes")
    assert shown["left_folders"] == ["tiny-00000000000a"], "one is in use, one is another store's"
    assert {p.name for p in spool.iterdir()} >= {"tiny-00000000000b", "tiny-00000000000d", "prefect-server.log"}
    assert not (spool / "tiny-00000000000a").exists()


@pytest.mark.prefect
def test_old_flow_runs_are_counted_and_removed(prefect: str):
    from prefect import flow

    from infra.upkeep.gc import old_flow_runs

    @flow(name="fault-drill", persist_result=False)
    def ended() -> int:
        return 1

    @flow(name="somebody-elses", persist_result=False)
    def other() -> int:
        return 1

    ended()
    other()
    assert old_flow_runs(1, delete=False) == 0
    there = old_flow_runs(0, delete=False)
    assert there >= 1
    assert old_flow_runs(0, delete=True) == there
    assert old_flow_runs(0, delete=False) == 0
