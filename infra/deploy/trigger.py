"""`fanline trigger`: one run of a deployment, from its creation to its verdict."""

import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.utilities.urls import url_for

from infra.deploy.connect import connected
from infra.deploy.deployments import REGRESSION_FLOW
from infra.errors import ConfigurationError
from infra.nightly.judge import judged
from infra.nightly.patience import cancel, is_final, read_patiently
from infra.records.verdict import Outcome
from infra.scenario.load import set_field, validate

POLL_SECONDS = 2.0
CONFIGURATION = ConfigurationError.verdict


@dataclass(frozen=True, kw_only=True)
class Triggered:
    """How a run ended: its verdict, the words, and the exit code that they stand for."""

    flow_run: str
    link: str
    verdict: str
    message: str
    exit_code: int


def trigger(
    deployment: str,
    overrides: Sequence[str],
    *,
    timeout_seconds: float,
    queue: str | None = None,
    tags: Sequence[str] = (),
    environment: Sequence[str] = (),
    working_dir: Path | None = None,
) -> Triggered:
    """Run a deployment and wait for its verdict.

    Args:
        deployment: `flow/name`; a name alone is one of fanout-regression.
        overrides: `section.field=value` on the scenario that the deployment has; on other flows their parameters.
        timeout_seconds: longest from creation to end; then the run is cancelled and the answer is INFRA.
        queue: queue of the deployment's pool; by default the deployment's own.
        environment: `NAME=VALUE` for the run's process.
        working_dir: folder of the worker's host that the run's process starts in: what lies there is imported first.
    Raises:
        ConfigurationError: there is no such deployment, or a value is refused (by us or by the server).
        InfraFault: the server does not answer.
        KeyboardInterrupt: it was interrupted; the run is cancelled.
    """
    with connected() as client:
        run = _create(client, deployment, overrides, queue, tags, job_variables(environment, working_dir))
        link = url_for("flow-run", obj_id=run.id) or str(run.id)
        _say(f"{run.name} is created: {link}")
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a CI job that is cancelled takes its run along
        try:
            run, in_time = _wait(run.id, timeout_seconds)
        except KeyboardInterrupt:
            cancel(client, client.read_flow_run(run.id), "The command that waited for it was interrupted.")
            raise
        if not in_time:
            cancel(client, run, f"Not finished within the {timeout_seconds:g} s that its command gave it.")
            words = f"not finished after {timeout_seconds:g} s, cancelled"
            return Triggered(
                flow_run=str(run.id), link=link, verdict="INFRA", message=words, exit_code=Outcome.INFRA.value
            )
        return _ended(run, link)


def _create(
    client: SyncPrefectClient,
    deployment: str,
    overrides: Sequence[str],
    queue: str | None,
    tags: Sequence[str],
    variables: dict[str, Any],
) -> FlowRun:
    name = deployment if "/" in deployment else f"{REGRESSION_FLOW}/{deployment}"
    try:
        found = client.read_deployment_by_name(name)
    except ObjectNotFound as cause:
        known = sorted(one.name for one in client.read_deployments())
        raise ConfigurationError(
            f"There is no deployment {name}.", next_step=f"There are: {', '.join(known) or 'none yet'}.", ids=[name]
        ) from cause
    try:
        return client.create_flow_run_from_deployment(
            found.id,
            parameters=_parameters(found.parameters, overrides),
            work_queue_name=queue,
            tags=tags,
            job_variables=variables or None,
        )
    except PrefectHTTPStatusError as cause:
        raise ConfigurationError(f"The server refuses the run: {_detail(cause)}", ids=[name]) from cause


def _parameters(defaults: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    if not overrides:
        return {}
    scenario = defaults.get("scenario")
    document: dict[str, Any] = json.loads(json.dumps(defaults if scenario is None else scenario))
    for override in overrides:
        set_field(document, override)
    if scenario is None:
        return document
    return {"scenario": validate(document, str(document.get("name"))).model_dump(mode="json")}


def job_variables(environment: Sequence[str], working_dir: Path | None) -> dict[str, Any]:
    """What a run asks of its pool beside what its deployment does.

    Raises:
        ConfigurationError: something in `environment` is not NAME=VALUE.
    """
    variables: dict[str, Any] = {}
    if environment:
        variables["env"] = dict(_pair(one) for one in environment)
    if working_dir is not None:
        variables["working_dir"] = str(working_dir.absolute())
    return variables


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigurationError(f"--env {text}: expected NAME=VALUE.")
    return name, value


def _detail(cause: PrefectHTTPStatusError) -> str:
    body = cause.response.json()
    return str(body.get("detail") or body.get("exception_detail") or body)


def _wait(flow_run_id: UUID, timeout_seconds: float) -> tuple[FlowRun, bool]:
    """The run as last seen, and whether it has ended in time; tells every change of its state."""
    deadline, told = time.monotonic() + timeout_seconds, ""
    while True:
        run = read_patiently(flow_run_id, POLL_SECONDS, _say)
        if run.state is not None and run.state.name != told:
            told = str(run.state.name)
            _say(told)
        if is_final(run):
            return run, True
        if time.monotonic() > deadline:
            return run, False
        time.sleep(POLL_SECONDS)


def _ended(run: FlowRun, link: str) -> Triggered:
    assert run.state is not None
    name = str(run.state.name)
    outcome, words, _ = judged(run.state.type.value, name, run.state.message or "")
    refused = name == CONFIGURATION
    return Triggered(
        flow_run=str(run.id),
        link=link,
        verdict=CONFIGURATION if refused else outcome.name,
        message=(run.state.message or "") if refused else words,
        exit_code=ConfigurationError.exit_code if refused else outcome.value,
    )


def _say(line: str) -> None:
    print(f"fanline: {line}", file=sys.stderr, flush=True)


def run_trigger(
    deployment: str,
    overrides: Sequence[str],
    timeout_seconds: float,
    queue: str | None,
    tags: Sequence[str],
    environment: Sequence[str],
    working_dir: Path | None,
    *,
    as_json: bool,
) -> int:
    """The command: prints the verdict and returns its exit code."""
    ended = trigger(
        deployment,
        overrides,
        timeout_seconds=timeout_seconds,
        queue=queue,
        tags=tags,
        environment=environment,
        working_dir=working_dir,
    )
    if as_json:
        print(json.dumps(vars(ended)))
    else:
        print(f"{ended.verdict}  {ended.link}\n{ended.message}")
    return ended.exit_code
