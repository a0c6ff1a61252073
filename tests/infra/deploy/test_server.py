"""What is written of a deployment, and what is said of one that no matrix has; `test_deploy.py` asks a real server."""

from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound

from infra.deploy.deploy_command import Deployed, lines
from infra.deploy.server import Server
from infra.deploy.wanted import Wanted

CRON = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
NIGHTLY = Wanted(kind="deployment", name="fanout-nightly/nightly", fields={"schedules": [CRON]})


class Client:
    """A server that has at most one deployment."""

    def __init__(self, active: bool | None):
        self.active, self.written = active, dict[str, Any]()

    def read_deployment_by_name(self, name: str) -> DeploymentResponse:
        if self.active is None:
            raise ObjectNotFound(httpx.HTTPError("404"))
        schedule = DeploymentSchedule(schedule=CronSchedule.model_validate(CRON), active=self.active)
        return DeploymentResponse(name=name, flow_id=uuid4(), schedules=[schedule], labels={})

    def create_flow_from_name(self, name: str) -> Any:
        return uuid4()

    def create_deployment(self, **written: Any) -> None:
        self.written = written


@pytest.mark.parametrize(("before", "after"), [(None, True), (True, True), (False, False)])
def test_whether_a_schedule_is_active_is_a_persons(before: bool | None, after: bool):
    client: Any = Client(before)
    server = Server(client)
    there = server.read(NIGHTLY)
    assert there is None if before is None else there and there["schedules"] == [CRON]
    server.write(NIGHTLY)
    assert [schedule.active for schedule in client.written["schedules"]] == [after]


@pytest.mark.parametrize(
    ("dry_run", "prune", "words"),
    [
        (True, False, "left deployment fanout-regression/old: the matrix does not have it, and its schedules go on;"),
        (False, False, "`prefect deployment delete 'fanout-regression/old'` removes it"),
        (True, True, "would remove deployment fanout-regression/old"),
        (False, True, "removed deployment fanout-regression/old"),
    ],
)
def test_what_the_matrix_dropped_is_said(dry_run: bool, prune: bool, words: str):
    deployed = Deployed(files=(), changes=(), dropped=("fanout-regression/old",), api_url="http://a/api")
    (line,) = lines(deployed, dry_run=dry_run, prune=prune)
    assert words in line
    nothing = Deployed(files=(), changes=(), dropped=(), api_url="http://a/api")
    assert lines(nothing, dry_run=dry_run, prune=prune) == ["http://a/api: nothing differs"]
