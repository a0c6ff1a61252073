"""`fanline diff`: what two runs differ in."""

import json

from rich.console import Console
from rich.table import Table

from infra.stored_run import find_stored
from infra.upkeep.diff import RunDifferences, differences


def compare(store_uri: str, left: str, right: str, *, as_json: bool) -> int:
    """Print what differs; 0 where nothing does, else 1."""
    runs = find_stored(store_uri, left), find_stored(store_uri, right)
    found = differences(*runs)
    if as_json:
        print(json.dumps({"runs": [run.run_id for run in runs], **found.to_dict()}))
    elif found.same:
        print(f"{runs[0].run_id} and {runs[1].run_id} do not differ: the same inputs, and every record is the same.")
    else:
        Console().print(table(found, runs[0].run_id, runs[1].run_id))
    return 0 if found.same else 1


def table(found: RunDifferences, left: str, right: str) -> Table:
    shown = Table("differs in", "", left, right)
    for kind, rows in found.inputs.items():
        for row in rows:
            shown.add_row(kind, row.what, row.left, row.right)
    if found.record:
        shown.add_row("first record", found.record.what, found.record.left, found.record.right)
    else:
        shown.add_row("first record", "none: every record is the same", "", "")
    return shown
