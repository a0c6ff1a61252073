"""The same machine with its server on PostgreSQL: deploy, one deployment run, one night."""

import pytest

from tests.flows.night import ended, start_night, table_of
from tests.machine_fixture import Machine

pytestmark = [pytest.mark.postgres, pytest.mark.prefect]


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
