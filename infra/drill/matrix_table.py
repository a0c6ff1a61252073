"""The drill's matrix, fault by check, for a terminal and for Prefect."""

import sys
from typing import Any

from rich.table import Table

from infra.drill.drill import Matrix, Row
from tasks.counter_assertion.registry import NAMES

MARKS = {"fail": "RED", "infra": "infra", "inconclusive": "?", "pass": "·", "not run": ""}


def rendered(matrix: Matrix) -> Table:
    """One line a run, one column a check; a check that had to be red is marked with `!`."""
    table = Table(title=headline(matrix), title_justify="left")
    for column in ("fault", "", *NAMES, "s"):
        table.add_column(column, no_wrap=column in ("fault", "s"))
    for row in matrix.rows:
        marks = [_mark(row, name) for name in NAMES]
        table.add_row(_name(row), "ok" if row.ok else "BAD", *marks, f"{row.seconds:.0f}")
    return table


def headline(matrix: Matrix) -> str:
    summary = matrix.to_dict()
    return (
        f"{summary['caught']} of {summary['faults']} faults caught, {summary['false_alarms']} false alarms in "
        f"{summary['clean_runs']} clean runs, {summary['seconds']:.0f} s"
    )


def artifact_rows(matrix: Matrix) -> list[dict[str, Any]]:
    """The same as rows of a Prefect table artifact."""
    return [
        {
            "fault": _name(row),
            "as it has to be": "yes" if row.ok else row.why,
            **{name: _mark(row, name) for name in NAMES},
        }
        for row in matrix.rows
    ]


def say(row: Row) -> None:
    """One line of progress."""
    print(f"{_name(row)}: {'ok' if row.ok else row.why} ({row.seconds:.0f} s)", file=sys.stderr, flush=True)


def _name(row: Row) -> str:
    return f"{row.fault} ({row.scene})"


def _mark(row: Row, check: str) -> str:
    mark = MARKS[row.checks.get(check, "not run")]
    return f"{mark}!" if check in row.must and mark == "RED" else mark
