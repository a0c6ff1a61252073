"""`fanline deploy`: bring a server to what the scenario matrix says, and say what that changes."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from infra.deploy.connect import connected
from infra.deploy.difference import Change, change_of
from infra.deploy.matrix import Matrix, load_matrix
from infra.deploy.render import outdated
from infra.deploy.server import Server
from infra.deploy.wanted import wanted
from infra.errors import ConfigurationError, InfraFault
from infra.open_run import absolute

ROUNDS = 3  # queues of one pool move each other when they get their places


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What differs, or differed before it was brought in line: rendered files, objects of the server.

    `dropped` are deployments of fanline's that the matrix no longer has: their schedules go on until they are removed.
    """

    files: tuple[Path, ...]
    changes: tuple[Change, ...]
    dropped: tuple[str, ...]
    api_url: str

    def __bool__(self) -> bool:
        return bool(self.files or self.changes or self.dropped)


def deploy(store_uri: str, notify: str | None, *, dry_run: bool, prune: bool = False) -> Deployed:
    """Render the files and create or update everything on the server; with `dry_run` only look.

    Args:
        store_uri: the artifact store that the deployments write to.
        notify: notification block that automations send to, as `slack-webhook/ops`; None keeps what they do.
        prune: remove deployments that the matrix no longer has.

    Raises:
        ConfigurationError: the matrix, the block or a pool's type is not right.
        InfraFault: the server does not answer, or does not keep what it is given.
    """
    matrix = load_matrix()
    files = outdated(matrix)
    with connected() as client:
        server, block = Server(client), _block_id(notify)
        changes = differing(server, matrix, absolute(store_uri), block)
        kept = {one.name for one in wanted(matrix, absolute(store_uri), block) if one.kind == "deployment"}
        dropped = sorted(set(server.deployments()) - kept)
        if not dry_run:
            for path, text in files.items():
                path.write_text(text)
            _bring_in_line(server, matrix, absolute(store_uri), block, changes)
            for name in dropped if prune else []:
                server.remove_deployment(name)
        api_url = str(client.api_url).rstrip("/")
        return Deployed(files=tuple(files), changes=tuple(changes), dropped=tuple(dropped), api_url=api_url)


def differing(server: Server, matrix: Matrix, store_uri: str, block: str | None) -> list[Change]:
    """The changes that are still to be made, in an order in which they can be."""
    found = (change_of(one, server.read(one)) for one in wanted(matrix, store_uri, block))
    return [change for change in found if change is not None]


def _bring_in_line(server: Server, matrix: Matrix, store: str, block: str | None, changes: list[Change]) -> None:
    for _ in range(ROUNDS):
        for change in changes:
            server.write(change.wanted)
        changes = differing(server, matrix, store, block)
        if not changes:
            return
    left = "; ".join(f"{c.wanted.kind} {c.wanted.name}: {f.in_words()}" for c in changes for f in c.fields)
    raise InfraFault(f"The server does not keep what it is given: {left}.", ids=[c.wanted.name for c in changes])


def _block_id(notify: str | None) -> str | None:
    if notify is None:
        return None
    from prefect.blocks.core import Block

    try:
        return str(Block.load(notify)._block_document_id)  # pyright: ignore[reportAttributeAccessIssue]
    except ValueError as cause:
        raise ConfigurationError(
            f"There is no notification block {notify!r}.",
            next_step="Create it in the UI under Blocks and name it as `slack-webhook/NAME`.",
            ids=[notify],
        ) from cause


def run_deploy(store_uri: str, notify: str | None, *, dry_run: bool, prune: bool, as_json: bool) -> None:
    """The command: prints what it did, or with `dry_run` would do."""
    deployed = deploy(store_uri, notify, dry_run=dry_run, prune=prune)
    if as_json:
        changes = [change.to_dict() for change in deployed.changes]
        files, dropped = [str(f) for f in deployed.files], list(deployed.dropped)
        print(json.dumps({"dry_run": dry_run, "files": files, "changes": changes, "dropped": dropped, "prune": prune}))
    else:
        for line in lines(deployed, dry_run=dry_run, prune=prune):
            print(line)
    sys.stdout.flush()


def lines(deployed: Deployed, *, dry_run: bool, prune: bool) -> list[str]:
    """The difference for a person, an object a line and its fields below it."""
    if not deployed:
        return [f"{deployed.api_url}: nothing differs"]
    done = (
        {"create": "would create", "update": "would update"} if dry_run else {"create": "created", "update": "updated"}
    )
    said = [f"{'would render' if dry_run else 'rendered'} {path.name}" for path in deployed.files]
    for change in deployed.changes:
        said.append(f"{done[change.action]} {change.wanted.kind} {change.wanted.name}")
        said += [f"  {field.in_words()}" for field in change.fields]
    return said + [_dropped(name, dry_run=dry_run, prune=prune) for name in deployed.dropped]


def _dropped(name: str, *, dry_run: bool, prune: bool) -> str:
    if prune:
        return f"{'would remove' if dry_run else 'removed'} deployment {name}"
    return (
        f"left deployment {name}: the matrix does not have it, and its schedules go on; "
        f"`fanline deploy --prune` or `prefect deployment delete '{name}'` removes it"
    )
