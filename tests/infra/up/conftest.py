from collections.abc import Iterator

import pytest

from infra.chaos.processes import of_home
from tests.flows.night import create_children
from tests.machine_fixture import Machine, machine_up


@pytest.fixture(scope="session")
def on_postgres(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that is up with its server on PostgreSQL, and two deployments of the light flow."""
    home = tmp_path_factory.mktemp("postgres-machine")
    with machine_up(home, PREFECT_SERVER_DATABASE_CONNECTION_URL=postgres_url) as machine:
        create_children(machine, {"plumbing": {"ends": "PASS"}, "red": {"ends": "REGRESSION"}})
        yield machine
    assert of_home(home) == {}, "something was left by `fanline down`"
