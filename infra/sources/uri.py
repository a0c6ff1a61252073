"""The spelling of a source: `scheme://place@revision?option=value@[from:to]`."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from infra.errors import ConfigurationError

SLICE = re.compile(r"@\[(\d*):(\d*)\]$")
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
LOCAL = "file"


@dataclass(frozen=True, kw_only=True)
class Uri:
    """A source, taken apart.

    Args:
        text: as it was written.
        scheme: `hf`, `s3`, `pypi`, `embedded`, `reasoning-gym`; `file` for a path.
        place: what follows the scheme, without options and rows.
        options: the query, with numbers as int or float.
        rows: the row slice.
    """

    text: str
    scheme: str
    place: str
    options: Mapping[str, Any]
    rows: slice

    def only_options(self, *known: str) -> None:
        """Refuse an option that this source does not have, with the nearest name."""
        for name in self.options:
            if name not in known:
                raise ConfigurationError(f"{self.text}: there is no option {name!r}.", next_step=nearest(name, known))


def parse(text: str) -> Uri:
    """Take a source apart.

    Example: parse("embedded://arithmetic?rows=64@[0:8]") -> embedded, arithmetic, {rows: 64}, slice(0, 8)
    """
    match = SLICE.search(text)
    bare = text[: match.start()] if match else text
    begin, end = match.groups() if match else ("", "")
    rows = slice(int(begin) if begin else 0, int(end) if end else None)
    scheme, separator, place = bare.partition("://")
    if not separator:
        return Uri(text=text, scheme=LOCAL, place=bare, options={}, rows=rows)
    query = ""
    if scheme not in (LOCAL, "s3"):
        place, _, query = place.partition("?")
    options = {name: number(value) for name, value in parse_qsl(query, keep_blank_values=True)}
    return Uri(text=text, scheme=scheme, place=place, options=options, rows=rows)


def number(text: str) -> int | float | str:
    """An int or a float where the text is one, else the text."""
    if not (match := NUMBER.fullmatch(text)):
        return text
    return float(text) if any(match.groups()) else int(text)


def unknown_scheme(uri: Uri, kind: str, known: Iterable[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{uri.text}: there is no {kind} source {uri.scheme}://.", next_step=nearest(uri.scheme, known), ids=[uri.text]
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."
