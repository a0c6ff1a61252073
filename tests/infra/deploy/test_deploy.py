"""`fanline deploy` against a real server that `fanline up` has started and deployed to."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from uuid import uuid4

import pytest
from prefect.states import Completed, Running

from infra.chaos.processes import wait_until
from infra.deploy import deploy_command
from infra.deploy.automations import FIRST_OF_A_CAUSE, NO_NIGHT, SILENT_RUN, automations, no_verdict, silent_run
from infra.deploy.matrix import load_matrix
from infra.deploy.server import Server
from infra.deploy.wanted import Wanted
from infra.errors import ConfigurationError
from infra.scenario.load import load
from tests.machine_fixture import ROOT, Machine

pytestmark = pytest.mark.prefect


def deploy(machine: Machine, notify: str | None = None, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """The changes that it makes, or would make."""
    with machine.client():
        done = deploy_command.deploy(str(machine.home / "store"), notify, dry_run=dry_run)
    return [change.to_dict() for change in done.changes]


def test_what_was_deployed_does_not_differ(machine: Machine):
    done = machine.fanline("deploy", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"dry_run": True, "files": [], "changes": [], "dropped": [], "prune": False}


def test_a_dry_run_tells_the_difference_and_changes_nothing(machine: Machine):
    from prefect.client.schemas.actions import WorkPoolUpdate

    with machine.client() as client:
        client.update_work_pool("gpu-4", WorkPoolUpdate(concurrency_limit=9))
        client.request("DELETE", "/work_pools/{pool}/queues/{queue}", path_params={"pool": "gpu-4", "queue": "gate"})
    dry = deploy(machine, dry_run=True)
    told = {(c["action"], c["kind"], c["name"]) for c in dry}
    assert {("update", "work pool", "gpu-4"), ("create", "work queue", "gpu-4/gate")} <= told
    pool = next(c for c in dry if c["kind"] == "work pool")
    assert pool["fields"] == [{"path": "concurrency_limit", "before": 9, "after": 4}]
    assert deploy(machine, dry_run=True) == dry
    assert deploy(machine) == dry
    assert deploy(machine) == []


def test_a_deployment_that_the_matrix_dropped_is_named_until_it_is_pruned(machine: Machine):
    old = "fanout-regression/of-an-older-matrix"
    with machine.client() as client:
        flow = client.create_flow_from_name("fanout-regression")
        for name, tags in (("of-an-older-matrix", ["fanline", "gpus-2"]), ("of-a-person", ["mine"])):
            client.create_deployment(flow_id=flow, name=name, entrypoint="flows.of.nothing", tags=tags)
    for arguments in (["--dry-run"], [], ["--dry-run", "--prune"], ["--prune"]):
        done = machine.fanline("deploy", *arguments)
        assert f"deployment {old}" in done.stdout and "of-a-person" not in done.stdout, done.stderr
    assert "nothing differs" in machine.fanline("deploy", "--dry-run").stdout
    with machine.client() as client:
        assert client.read_deployment_by_name("fanout-regression/of-a-person")


def test_a_schedule_that_a_person_has_paused_stays_paused(machine: Machine):
    def nightly(client: Any) -> Any:
        return client.read_deployment_by_name("fanout-nightly/nightly")

    with machine.client() as client:
        there = nightly(client)
        client.update_deployment_schedule(there.id, there.schedules[0].id, active=False)
        assert deploy(machine, dry_run=True) == []
        client.request("PATCH", "/deployments/{id}", path_params={"id": there.id}, json={"description": "of a person"})
        assert [change["name"] for change in deploy(machine)] == ["fanout-nightly/nightly"]
        (schedule,) = nightly(client).schedules
        assert not schedule.active and deploy(machine, dry_run=True) == []
        client.update_deployment_schedule(there.id, schedule.id, active=True)


def test_queues_have_their_places_and_limits(machine: Machine):
    for name, pool in load_matrix().pools.items():
        with machine.client() as client:
            found = client.request("POST", "/work_pools/{pool}/queues/filter", path_params={"pool": name}, json={})
        queues = {q["name"]: (q["priority"], q["concurrency_limit"]) for q in found.json()}
        assert queues == {key: (queue.priority, queue.concurrency) for key, queue in pool.queues.items()}


def test_prefects_own_deploy_makes_the_same_deployments(machine: Machine):
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    env = {**machine.env, "PREFECT_API_URL": machine.api_url}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert deploy(machine, dry_run=True) == []


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("seed", -1, "-1 is less than the minimum of 0"),
        ("device", "tpu", "'tpu' is not one of"),
        ("sed", 3, "Additional properties are not allowed"),
        ("seed", "many", "'many' is not of type 'integer'"),
    ],
)
def test_a_wrong_value_is_refused_by_the_server_with_words(machine: Machine, field: str, value: Any, words: str):
    from prefect.exceptions import PrefectHTTPStatusError

    scenario = {**load("tiny").model_dump(mode="json"), field: value}
    with machine.client() as client, pytest.raises(PrefectHTTPStatusError) as refused:
        deployment = client.read_deployment_by_name("fanout-regression/tiny")
        client.create_flow_run_from_deployment(deployment.id, parameters={"scenario": scenario})
    assert words in refused.value.response.text


def test_the_form_describes_its_fields(machine: Machine):
    with machine.client() as client:
        schema = client.read_deployment_by_name("fanout-regression/tiny").parameter_openapi_schema
    assert schema["definitions"]["Scenario"]["properties"]["seed"]["description"]
    assert schema["definitions"]["Scenario"]["properties"]["device"]["enum"] == ["auto", "cpu", "cuda"]
    assert schema["definitions"]["Rollout"]["properties"]["prompts"]["maximum"] == 65_536


def test_an_s3_store_is_a_block_whose_credentials_stay_a_persons(machine: Machine):
    from prefect.client.schemas.actions import BlockDocumentUpdate

    def block(uri: str) -> Wanted:
        return Wanted(kind="storage block", name="remote-file-system/another-store", fields={"basepath": uri})

    with machine.client() as client:
        server = Server(client)
        assert server.read(block("s3://bucket/a")) is None
        server.write(block("s3://bucket/a"))
        there = client.read_block_document_by_name("another-store", "remote-file-system")
        client.update_block_document(there.id, BlockDocumentUpdate(data={"settings": {"key": "of a person"}}))
        server.write(block("s3://bucket/b"))
        now = client.read_block_document_by_name("another-store", "remote-file-system")
    assert now.data["basepath"] == "s3://bucket/b" and now.data["settings"] == {"key": "of a person"}


def test_a_night_that_gives_no_verdict_is_noticed(machine: Machine):
    """The deployed automation waits for 26 hours; the same trigger with ten seconds."""
    name = "no verdict, at once"
    trigger = no_verdict(10.0)
    fields = {"description": "", "enabled": True, "trigger": trigger}
    with machine.client() as client:
        Server(client).write(Wanted(kind="automation", name=name, fields=fields))
        deployed = Server(client).read(Wanted(kind="automation", name=NO_NIGHT, fields={}))
    assert deployed and deployed["trigger"] == {**trigger, "within": 26 * 3600.0}

    def fired() -> bool:
        return name in [e["resource"]["prefect.resource.name"] for e in machine.events("prefect.automation.triggered")]

    assert wait_until(fired, 90)


def test_a_run_that_is_heard_of_no_more_is_crashed_and_one_that_ended_stays(machine: Machine):
    """The deployed automation waits for ten minutes; the same with ten seconds."""
    fields = automations(load_matrix().nightly, None)[SILENT_RUN]
    with machine.client() as client:
        deployed = Server(client).read(Wanted(kind="automation", name=SILENT_RUN, fields={}))
        at_once = {**fields, "trigger": silent_run(10.0)}
        Server(client).write(Wanted(kind="automation", name="silent, at once", fields=at_once))
        deployment = client.read_deployment_by_name("fanout-regression/tiny").id
        silent, ended, others = (
            client.create_flow_run_from_deployment(deployment, state=Running(), name=name)
            for name in ("silent", "ended", "others")
        )
    assert deployed and deployed["trigger"] == fields["trigger"] and deployed["actions"] == fields["actions"]
    with machine.client() as client:
        for run, flow in ((silent, "fanout-regression"), (ended, "fanout-regression"), (others, "somebody-elses")):
            beat = {"resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}"}, "id": str(uuid4())}
            beat |= {"event": "prefect.flow-run.heartbeat", "occurred": datetime.now(UTC).isoformat()}
            of_flow = {"prefect.resource.id": f"prefect.flow.{run.flow_id}", "prefect.resource.role": "flow"}
            beat["related"] = [{**of_flow, "prefect.resource.name": flow}]
            client.request("POST", "/events", json=[beat])
        client.set_flow_run_state(ended.id, Completed(name="PASS"), force=True)

        def state(run: Any) -> str | None:
            return client.read_flow_run(run.id).state_name

        assert wait_until(lambda: state(silent) == "Crashed", 90), state(silent)
        assert state(ended) == "PASS"
        assert state(others) == "Running", "a run of another flow is nobody's business here"


@pytest.fixture
def inbox() -> Iterator[tuple[str, list[str]]]:
    """URL of a server that keeps what is posted to it."""
    letters: list[str] = []

    class Inbox(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            letters.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Inbox) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", letters
        server.shutdown()


def test_a_notification_block_gets_the_first_of_a_cause(machine: Machine, inbox: tuple[str, list[str]]):
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    url, letters = inbox
    with machine.client():
        block = CustomWebhookNotificationBlock(
            name="ops", url=url, json_data={"said": "{{subject}}: {{body}}"}, headers=None, cookies=None
        )
        block.save("ops", overwrite=True)
    changed = deploy(machine, "custom-webhook/ops")
    assert [change["name"] for change in changed] == [FIRST_OF_A_CAUSE, NO_NIGHT]
    assert deploy(machine) == [], "without --notify the actions stay as they are"
    for first in ("true", "false"):
        emit_red(machine, first)
    assert wait_until(lambda: bool(letters), 60)
    assert "tiny is red" in letters[0] and "REGRESSION ledger" in letters[0] and "rollout 4 is missing" in letters[0]
    assert len(letters) == 1


def emit_red(machine: Machine, first: str) -> None:
    resource = {
        "prefect.resource.id": "fanline.cause.0123456789abcdef",
        "prefect.resource.name": "tiny",
        "fanline.first": first,
        "fanline.verdict": "REGRESSION",
        "fanline.checks": "ledger",
    }
    from prefect.events import Event

    event = Event(event="fanline.run.red", resource=resource, payload={"reason": "rollout 4 is missing", "run": "r"})  # type: ignore[arg-type]
    with machine.client() as client:
        client.request("POST", "/events", json=[event.model_dump(mode="json")])


def test_a_notification_block_that_is_not_there_is_wrong_usage(machine: Machine):
    with pytest.raises(ConfigurationError, match="no notification block"):
        deploy(machine, "slack-webhook/nobody", dry_run=True)
