"""Fixtures that more than one folder of tests uses; each service is started once a session."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.prefect_api import prefect_api
from infra.ray_cluster import RayCluster
from infra.scenario.model import Engine
from infra.sglang.engine import SGLangEngine
from infra.supervisor import descendants
from tests.engine_fixture import write_tiny_qwen2
from tests.every_test_ran import pytest_sessionfinish  # noqa: F401  pytest finds the hook here
from tests.machine_fixture import machine, on_postgres  # noqa: F401  pytest finds the fixtures here
from tests.postgres_fixture import postgres_url  # noqa: F401  as above


@pytest.fixture(scope="session")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a seeded random Qwen2 (tests.engine_fixture says its sizes)."""
    return write_tiny_qwen2(tmp_path_factory.mktemp("model") / "tiny-qwen2")


@pytest.fixture(scope="session")
def engine(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangEngine]:
    """A running SGLang server of `tiny_qwen2`; a test that pushes other weights puts the old ones back."""
    log_path = tmp_path_factory.mktemp("engine") / "engine.log"
    settings = Engine.model_validate(
        {"max_total_tokens": 4096, "max_running_requests": 16, "request_deadline_seconds": 60}
    )
    with SGLangEngine(model_path=tiny_qwen2, settings=settings, device="cpu", seed=1, log_path=log_path) as engine:
        engine.wait_ready()
        family = descendants(engine.process_id)
        yield engine
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()], "the server left processes"


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A local Ray cluster with four logical GPUs."""
    log_path = tmp_path_factory.mktemp("ray") / "ray.log"
    with RayCluster("tests", ranks=4, gpus=4, log_path=log_path) as cluster:
        yield cluster


@pytest.fixture
def prefect(prefect_url: str) -> Iterator[str]:
    """The session's Prefect server for flows of this process, also where a test before has imported Prefect."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: prefect_url}):
        yield prefect_url


@pytest.fixture(scope="session")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real Prefect server for all runs of the session."""
    home = tmp_path_factory.mktemp("prefect")
    before = {name: os.environ.get(name) for name in ("PREFECT_HOME", "PREFECT_API_URL")}
    os.environ["PREFECT_HOME"] = str(home)
    os.environ.pop("PREFECT_API_URL", None)
    with prefect_api(home / "server.log") as url:
        yield url
    os.environ.update({name: value for name, value in before.items() if value is not None})
