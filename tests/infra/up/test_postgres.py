"""The same machine with its server on PostgreSQL: deploy, one deployment run, one night."""

from collections.abc import Iterator

import pytest

from tests.flows.night import create_children, ended, start_night, table_of
from tests.machine_fixture import Machine, machine_up

pytestmark = [pytest.mark.postgres, pytest.mark.prefect]


@pytest.fixture(scope="module")
def on_postgres(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    home = tmp_path_factory.mktemp("postgres-machine")
    with machine_up(home, PREFECT_SERVER_DATABASE_CONNECTION_URL=postgres_url) as machine:
        create_children(machine, {"plumbing": {"ends": "PASS"}, "red": {"ends": "REGRESSION"}})
        yield machine


def test_the_database_is_the_one_that_was_named(on_postgres: Machine):
    assert not list(on_postgres.home.rglob("prefect.db"))


def test_a_second_deploy_changes_nothing(on_postgres: Machine):
    again = on_postgres.fanline("deploy")
    assert again.returncode == 0 and "nothing differs" in again.stdout, again.stderr


def test_a_deployment_run_ends_with_its_verdict(on_postgres: Machine):
    run = on_postgres.fanline("trigger", "red")
    assert run.returncode == 1 and run.stdout.startswith("REGRESSION"), run.stderr


def test_a_night_gives_one_verdict(on_postgres: Machine):
    night = ended(on_postgres, start_night(on_postgres, ["plumbing", "absent"]))
    assert night.state.name == "INFRA"
    verdicts = {name: row["verdict"] for name, row in table_of(on_postgres, night.id).items()}
    assert verdicts == {"plumbing": "PASS (plumbing only)", "absent": "INFRA"}
