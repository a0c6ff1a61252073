"""One row of a data source, or why it can not be read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row as its source holds it.

    Args:
        number: row number in the source, from 0; also where a slice was taken.
        where: file and line, for messages.
        values: the columns; None where the row is unreadable, with the reason in `fault`.
    """

    number: int
    where: str
    values: Mapping[str, Any] | None
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a source gave: its rows, and the commit, version or digest it resolved to."""

    revision: str
    rows: list[Row]


def numbered(values: Iterator[Mapping[str, Any]], name: str, wanted: slice) -> list[Row]:
    """Rows of a source without files, within the slice."""
    return [
        Row(number=number, where=f"{name} row {number}", values=value)
        for number, value in enumerate(values)
        if number >= (wanted.start or 0) and (wanted.stop is None or number < wanted.stop)
    ]
