"""The commands for a Prefect server and what runs on it unattended: deploy, trigger, up, down."""

from pathlib import Path
from typing import Annotated

import typer

from infra.settings import settings

Store = Annotated[str | None, typer.Option("--store", help="Artifact store: a folder or s3://bucket/prefix.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def register(app: typer.Typer) -> None:
    """Add them to the command line."""
    for command in (deploy, trigger, up, down):
        app.command()(command)


def deploy(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what differs and change nothing.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove deployments that the matrix no longer has.")] = False,
    store: Store = None,
    notify: Annotated[
        str | None, typer.Option(metavar="BLOCK", help="Notification block of the automations, as slack-webhook/ops.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring a Prefect server to the scenario matrix: pools, queues, store, deployments, automations. Repeatable."""
    from infra.deploy.deploy_command import run_deploy

    run_deploy(store or settings().store_uri, notify, dry_run=dry_run, prune=prune, as_json=as_json)


def trigger(
    deployment: Annotated[str, typer.Argument(help="flow/name; a name alone is one of fanout-regression.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field; may be given again.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Then the run is cancelled.")] = 3600.0,
    queue: Annotated[str | None, typer.Option(help="Queue of the deployment's pool.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag of the run; may be given again.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment of the run; may be given again.")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the worker's host; code that is there runs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a deployment on its pool, wait, and exit with its verdict; interrupted, it cancels the run."""
    from infra.deploy.trigger import run_trigger

    raise typer.Exit(
        run_trigger(deployment, set_ or [], timeout, queue, tag or [], env or [], working_dir, as_json=as_json)
    )


def up(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server on 127.0.0.1.")] = 4200,
    as_json: Json = False,
) -> None:
    """Start what one machine needs, in the background: Prefect server, workers, store, deployments. Repeatable."""
    from infra.up.up_command import run_up

    run_up(port, as_json=as_json)


def down(as_json: Json = False) -> None:
    """End everything that `fanline up` has started."""
    from infra.up.up_command import run_down

    run_down(as_json=as_json)
