"""`fanline chaos`: take things away from runs at known moments, and print what became of each."""

import json
import sys
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from infra.chaos.chaos import TABLE, Chaos, make_chaos
from infra.chaos.row import Row
from infra.errors import ConfigurationError
from infra.settings import settings
from infra.store import ArtifactStore


def chosen(only: list[str]) -> list[tuple[str, str]]:
    """Pairs of target and moment whose target, or whose "target@moment", is asked for; all without a wish.

    Raises:
        ConfigurationError: something that is not in the table.
    """
    pairs = [(target, moment) for target, moments in TABLE.items() for moment in moments]
    if not only:
        return pairs
    known = {target for target, _ in pairs} | {f"{t}@{m}" for t, m in pairs}
    if unknown := sorted(set(only) - known):
        raise ConfigurationError(
            f"There is no row {', '.join(unknown)}.", next_step=f"Targets: {', '.join(TABLE)}; or TARGET@MOMENT."
        )
    return [(t, m) for t, m in pairs if t in only or f"{t}@{m}" in only]


def run_chaos(only: list[str], *, as_json: bool) -> int:
    """Print the table, keep it in the store under `chaos/`, and return 0 if every run got over its loss, else 1."""
    store, folder = ArtifactStore(settings().store_uri), f"chaos/{datetime.now(UTC):%Y%m%dT%H%M%S}"

    def done(row: Row) -> None:
        said = f"{row.target} at {row.moment}: {row.outcome}, {row.verdict}, {row.seconds_to_recovery:.0f} s"
        print(f"fanline: {said}{'' if row.ok else ' - NOT OK'}", file=sys.stderr, flush=True)
        store.publish_json(f"{folder}/{row.target} at {row.moment}.json".replace(" ", "-"), row.to_dict())

    chaos = make_chaos(chosen(only), done)
    key = f"{folder}/table.json"
    store.publish_json(key, chaos.to_dict())
    if as_json:
        print(json.dumps(chaos.to_dict()))
    else:
        Console().print(table(chaos))
        print(f"kept as {key}")
    return 0 if chaos.ok else 1


def table(chaos: Chaos) -> Table:
    columns = ("taken away", "when", "stage unfinished", "outcome", "verdict", "same weights", "recovered in", "left")
    shown = Table(*columns)
    for row in chaos.rows:
        shown.add_row(
            row.target,
            row.moment,
            _yes(row.unfinished),
            row.outcome,
            row.verdict or "none",
            _yes(row.same_weights),
            f"{row.seconds_to_recovery:.0f} s",
            "nothing" if not row.left_running else "; ".join(row.left_running),
        )
    for target, why in chaos.not_run.items():
        shown.add_row(target, "", "", "not run", why, "", "", "")
    return shown


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
