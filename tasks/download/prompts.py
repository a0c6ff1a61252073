"""Rows of a source as prompts: text, label and metadata, or the reason why a row can not be one."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import ConfigurationError
from infra.scenario.model import Data
from infra.sources.rows import Row
from infra.sources.uri import nearest

SHOWN_BAD_ROWS = 20
PLACEHOLDER = re.compile(r"\{(\w+)\}")

Render = Callable[[list[dict[str, str]]], str]


class BadRows(ConfigurationError):
    """More rows are unreadable than the scenario allows; names file, line and reason of each."""


class RowFault(ValueError):
    """Why one row can not be a prompt."""


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Rows of PROMPTS_SCHEMA in source order, and the rows left out: `file line: reason`."""

    rows: list[dict[str, str]]
    skipped: tuple[str, ...]


def make_prompts(data: Data, rows: Sequence[Row], render: Render | None) -> Prompts:
    """Prompts of all rows that can be one.

    Args:
        render: chat messages to text; None where the scenario does not apply a chat template.
    Raises:
        ConfigurationError: no row has the prompt or label column; names the columns there are.
        BadRows: a larger share of the rows is bad than `data.allowed_bad_rows`.
    """
    refuse_missing_columns(data, rows)
    made, bad = [], []
    for row in rows:
        try:
            made.append(one_prompt(data, row, render))
        except RowFault as fault:
            bad.append(f"{row.where}: {fault}")
    if len(bad) > data.allowed_bad_rows * len(rows):
        raise _too_many(data, bad, len(rows))
    return Prompts(rows=made, skipped=tuple(bad))


def refuse_missing_columns(data: Data, rows: Sequence[Row]) -> None:
    """Refuse a column that no readable row has: a wrong name in the scenario, not a bad row."""
    readable = [row.values for row in rows if row.values is not None]
    columns = sorted({name for values in readable for name in values})
    for field, name in (("prompt_key", data.prompt_key), ("label_key", data.label_key)):
        if readable and name not in columns:
            raise ConfigurationError(
                f"{data.uri} has no column {name!r} (data.{field}); it has {', '.join(columns)}.",
                next_step=nearest(name, columns),
                ids=[name],
            )


def one_prompt(data: Data, row: Row, render: Render | None) -> dict[str, str]:
    """One row of PROMPTS_SCHEMA.

    Raises:
        RowFault: the reason why the row can not be a prompt.
    """
    if row.values is None:
        raise RowFault(row.fault)
    prompt, label = (_present(row, key) for key in (data.prompt_key, data.label_key))
    metadata = _metadata(row)
    if data.prompt_template:
        prompt = fill(data.prompt_template, {**metadata, "prompt": _plain(prompt)})
    text = _chat(prompt, render) if render else _plain(prompt)
    if not text:
        raise RowFault("the prompt is empty")
    return {
        "prompt_id": str(row.number),
        "prompt": text,
        "label": _label(label),
        "metadata": json.dumps(metadata, sort_keys=True, ensure_ascii=False),
    }


def fill(template: str, values: dict[str, Any]) -> str:
    """The template with `{name}` replaced by the prompt or an entry of the row's metadata."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise RowFault(f"data.prompt_template asks for {match[1]!r}, the row has {', '.join(sorted(values))}")
        return str(values[match[1]])

    return PLACEHOLDER.sub(value, template)


def _present(row: Row, key: str) -> Any:
    value = row.values[key] if row.values and key in row.values else None
    if value is None:
        raise RowFault(f"no {key!r}")
    return value


def _plain(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise RowFault("the prompt is not text; chat messages need data.apply_chat_template")
    return prompt


def _chat(prompt: Any, render: Render) -> str:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    valid = isinstance(messages, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    )
    if not valid or not messages:
        raise RowFault("the prompt is neither text nor a list of messages with role and content")
    return render(messages)


def _label(label: Any) -> str:
    if isinstance(label, bool) or not isinstance(label, (str, int, float)):
        raise RowFault(f"the label is neither text nor a number but {type(label).__name__}")
    return str(label)


def _metadata(row: Row) -> dict[str, Any]:
    given = row.values.get("metadata") if row.values else None
    if given is None:
        return {}
    try:
        metadata = json.loads(given) if isinstance(given, str) else given
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError) as cause:
        raise RowFault(f"metadata is not JSON: {cause}") from cause
    if not isinstance(metadata, dict):
        raise RowFault(f"metadata is not a JSON object but {type(metadata).__name__}")
    return metadata


def _too_many(data: Data, bad: list[str], total: int) -> BadRows:
    shown = "".join(f"\n  {line}" for line in bad[:SHOWN_BAD_ROWS])
    more = f"\n  and {len(bad) - SHOWN_BAD_ROWS} more" if len(bad) > SHOWN_BAD_ROWS else ""
    return BadRows(
        f"{data.uri}: {len(bad)} of {total} rows are bad, data.allowed_bad_rows allows a share of "
        f"{data.allowed_bad_rows:g}:{shown}{more}\n",
        next_step="Mend the rows, or raise data.allowed_bad_rows to skip and list them.",
        ids=bad,
    )
