"""The same flow on a Ray cluster of several nodes, with its API on PostgreSQL and its store on S3."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem

from infra.chaos.processes import of_home, wait_until
from infra.chaos.ray_nodes import RayNodes
from infra.chaos.s3_server import BUCKET
from infra.run import Run
from infra.scenario.load import load
from tests.flows.conftest import ended
from tests.flows.slow_run import Start, start_slow, wait_for_a_rollout
from tests.machine_fixture import Machine
from tests.s3_servers import seaweedfs, using

pytestmark = [getattr(pytest.mark, name) for name in ("e2e", "engine", "trainer", "prefect", "postgres", "s3")]

RECORDS = ("flow_runs", "task_runs", "artifacts", "events", "logs")  # of Prefect; 200 of each


@dataclass(frozen=True)
class Hosts:
    """The nodes, and what a run needs to join them and to write into the store."""

    nodes: RayNodes
    environment: dict[str, str]

    @property
    def store_uri(self) -> str:
        return self.environment["FANLINE_STORE"]


@pytest.fixture(scope="module")
def hosts(on_postgres: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two nodes with a GPU each for trainer ranks, one for the engine."""
    folder = tmp_path_factory.mktemp("hosts")
    with seaweedfs(tmp_path_factory.mktemp("two-nodes-s3")) as weed, using(weed.environment):
        environment = {**weed.environment, "FANLINE_STORE": f"s3://{BUCKET}/nodes"}
        nodes = RayNodes(folder, {**environment, "FANLINE_HOOK_PACKAGES": "hooks,tests"})
        try:
            nodes.start("trainer-a", "trainer", gpus=1)
            nodes.start("trainer-b", "trainer", gpus=1)
            nodes.start("engine-a", "engine", gpus=1)
            yield Hosts(nodes, {**environment, **nodes.driver_environment, "PREFECT_API_URL": on_postgres.api_url})
        finally:
            nodes.close()


def test_a_lost_engine_node_is_replaced_by_another_one(
    start_run: Start, undisturbed: str, hosts: Hosts, tmp_path: Path
):
    process = start_slow(start_run, tmp_path, **hosts.environment)
    wait_for_a_rollout(tmp_path)
    assert [w for w in of_home(hosts.nodes.home("engine-a")).values() if "infra.sglang.launch" in w]
    for name in ("trainer-a", "trainer-b"):
        assert [w for w in of_home(hosts.nodes.home(name)).values() if "ray::TrainerRank" in w]
    hosts.nodes.kill("engine-a")
    hosts.nodes.start("engine-b", "engine", gpus=1)
    result = ended(process)
    assert result.code == 0, (result.summary, result.errors)
    assert result.summary and result.summary["weights_digest"] == undisturbed
    assert wait_until(lambda: not of_home(tmp_path), 15), of_home(tmp_path)
    assert wait_until(lambda: not hosts.nodes.working(), 15), hosts.nodes.working()


def test_a_lost_trainer_node_is_said_and_the_run_goes_on_when_there_is_one_again(
    start_run: Start, undisturbed: str, hosts: Hosts, on_postgres: Machine, tmp_path: Path
):
    process = start_slow(start_run, tmp_path, **hosts.environment)
    wait_for_a_rollout(tmp_path)
    hosts.nodes.kill("trainer-b")
    result = ended(process)
    assert result.code == 3 and result.summary, (result.summary, result.errors)
    assert result.summary["verdict"] == "INFRA" and "rank" in result.summary["message"]
    assert wait_until(lambda: not hosts.nodes.working(), 15), hosts.nodes.working()

    hosts.nodes.start("trainer-c", "trainer", gpus=1)
    run_id = result.summary["run"]
    again = ended(start_slow(start_run, tmp_path, "--resume", run_id, **hosts.environment))
    assert again.code == 0, (again.summary, again.errors)
    assert again.summary and again.summary["weights_digest"] == undisturbed
    run = Run(run_id=run_id, scenario=load("tiny"), store_uri=hosts.store_uri, spool=tmp_path)
    assert run.finished("training", 0) is not None
    for name in ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN"):
        secret = {**hosts.environment, **hosts.nodes.token}[name]
        said = f"{result} {again}"
        assert secret not in said and not whereabouts(secret, hosts, on_postgres, tmp_path), name


def whereabouts(secret: str, hosts: Hosts, machine: Machine, home: Path) -> list[str]:
    """Where a secret got to: files of the run and of the nodes, objects in the store, records of Prefect."""
    folders = (home, hosts.nodes.folder, hosts.nodes.sessions)
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]
    fs: Any = S3FileSystem()
    objects = [key for key in fs.find(BUCKET) if secret.encode() in fs.cat_file(key)]
    with machine.client() as client:
        answers = {kind: client.request("POST", f"/{kind}/filter", json={}).text for kind in RECORDS}
    records = [kind for kind, text in answers.items() if secret in text]
    return [*map(str, files), *objects, *records]
