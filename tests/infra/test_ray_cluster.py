"""The Ray cluster of a run: real head, real actors, ended in every way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from infra.chaos.ray_nodes import RayNodes
from infra.errors import TrainerUnavailable
from infra.ray_cluster import ROOT, RayCluster
from infra.supervisor import descendants

pytestmark = pytest.mark.trainer


def test_a_local_cluster_offers_logical_gpus(ray_cluster: RayCluster) -> None:
    ray_cluster.connect()
    resources = ray.cluster_resources()
    assert (resources["GPU"], resources["CPU"] >= 4) == (4.0, True)


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOBODY_THERE, str(tmp_path / "ray.log")], cwd=ROOT, capture_output=True, text=True
    )
    assert "The Ray cluster of lonely does not answer at 127.0.0.1:9" in done.stdout, done.stderr


NOBODY_THERE = """
import sys
from pathlib import Path
from infra.errors import TrainerUnavailable
from infra.ray_cluster import RayCluster
try:
    RayCluster("lonely", ranks=1, gpus=1, log_path=Path(sys.argv[1]), address="127.0.0.1:9").connect()
except TrainerUnavailable as error:
    print(error)
"""


def test_a_head_whose_gcs_is_gone_is_gone_too(tmp_path: Path) -> None:
    """Ray would hope for a minute, and then abort the driver without a word."""
    done = subprocess.run(
        [sys.executable, "-c", GCS_KILLED, str(tmp_path / "ray.log")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "The Ray cluster of headless ended with 1" in done.stdout, done.stderr
    assert "Ray's gcs_server" in (tmp_path / "ray.log").read_text()


GCS_KILLED = """
import os, signal, sys, time
from pathlib import Path
from infra.errors import TrainerUnavailable
from infra.ray_cluster import RayCluster
from infra.supervisor import descendants
cluster = RayCluster("headless", ranks=1, gpus=1, log_path=Path(sys.argv[1]))
with cluster:
    cluster.connect()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(cluster.head.pid)}
    (gcs,) = (pid for pid, command in commands.items() if b"gcs_server" in command.split(bytes(1))[0])
    os.kill(gcs, signal.SIGKILL)
    try:
        while True:
            cluster.check()
            time.sleep(0.1)
    except TrainerUnavailable as error:
        print(error)
"""


def start_driver(log_path: Path, task: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.infra.ray_driver", str(log_path), task]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    return driver


def wait_until_gone(pids: set[int]) -> None:
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)


def test_a_killed_driver_leaves_nothing(tmp_path: Path) -> None:
    folders = set(Path("/tmp").glob("fanline-*"))
    driver = start_driver(tmp_path / "ray.log", "wait")
    family = descendants(driver.pid)
    names = " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in family)
    assert all(name in names for name in ("gcs_server", "raylet", "ray::Sleeper"))
    mine = {p for p in set(Path("/tmp").glob("fanline-*")) - folders if list(p.glob("session_*"))}
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_until_gone(family)
    assert mine and not any(p.exists() for p in mine)


def test_a_lost_head_is_an_error_and_not_the_end_of_the_driver(tmp_path: Path) -> None:
    driver = start_driver(tmp_path / "ray.log", "lose")
    output, _ = driver.communicate()
    assert "The Ray cluster of driver ended with" in output
    assert driver.returncode == 0


def test_sigterm_is_still_heard_by_who_listened_before(tmp_path: Path) -> None:
    """Ray's own handlers would leave by SystemExit or abort: a cancelled run would be a crash."""
    driver = start_driver(tmp_path / "ray.log", "ask")
    driver.terminate()
    output, _ = driver.communicate()
    assert (driver.returncode, output) == (0, "asked to end\n")


def test_the_head_starts_on_the_main_thread_only(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    cluster = RayCluster("threaded", ranks=1, gpus=1, log_path=tmp_path / "ray.log")
    with ThreadPoolExecutor(1) as pool, pytest.raises(AssertionError, match="main thread"):
        pool.submit(cluster.start).result()
    with pytest.raises(TrainerUnavailable, match="ended while it started"):
        RayCluster("gone", ranks=1, gpus=-1, log_path=tmp_path / "gone.log").__enter__().connect()


def test_a_pool_does_not_see_the_gpus_of_another_ones_nodes(tmp_path: Path) -> None:
    nodes = RayNodes(tmp_path)
    try:
        nodes.start("a", "pool-a", gpus=2)
        nodes.start("b", "pool-b", gpus=1)
        done = subprocess.run(
            [sys.executable, "-c", TWO_POOLS, str(tmp_path / "ray.log")],
            env={**os.environ, **nodes.driver_environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    finally:
        nodes.close()
    assert done.stdout.split() == ["pool-a", "2", "pool-b", "1", "pool-c", "0"], done.stderr


TWO_POOLS = """
import os, sys
from pathlib import Path
from infra.chaos.ray_nodes import ROLE
from infra.ray_cluster import RayCluster
for pool in ("pool-a", "pool-b", "pool-c"):
    cluster = RayCluster(
        pool,
        ranks=1,
        gpus=1,
        log_path=Path(sys.argv[1]),
        address=os.environ["RAY_ADDRESS"],
        trainer_labels={ROLE: pool},
    )
    print(pool, cluster.offered_gpus())
    cluster.stop()
"""
