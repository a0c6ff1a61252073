"""The format of the records, version by version: what each file has to hold, for whoever writes or reads them.

The schemas under `schemas/` say the same as documents; `python -m infra.records.format` writes them anew.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from infra.errors import FanlineError
from infra.records.plan import TrainingPlan
from infra.records.replay import Invariance, Replay
from infra.records.rollouts import (
    LOG_PROBS_MEANINGS,
    LOG_PROBS_SCHEMA,
    PARTIAL_SCHEMA,
    ROLLOUTS_MEANINGS,
    ROLLOUTS_SCHEMA,
    SYNC_LOG_PROBS_MEANINGS,
    SYNC_LOG_PROBS_SCHEMA,
    RolloutsRef,
)
from infra.records.sources import PROMPTS_SCHEMA, PromptsRef
from infra.records.training import SyncResult, TrainedIteration

RECORDS_VERSION = 1
SCHEMAS = Path(__file__).parent / "schemas"
SHOWN = 3  # problems of one file that are spelled out


class NotOfTheFormat(FanlineError):
    """A record is there and is not what the format says; names the file and what is wrong in it."""


@dataclass(frozen=True, kw_only=True)
class RunDocument:
    """`run.json`, the first file of a run: its id and its whole scenario (schema scenario.schema.json)."""

    run: str
    scenario: dict[str, Any]
    records_version: int = RECORDS_VERSION


@dataclass(frozen=True, kw_only=True)
class Line:
    """One event of a ledger segment (JSON lines); `line` counts from 0 in its segment. Ids depend on the event.

    A run without retries, filters and leftovers has one `drawn` a prompt group, one `called` a slot, one `generated`,
    `graded` and `trained` a sample, and one `normalised` a rollout. `stage` names the stage that writes.
    """

    run: str
    stage: str
    iteration: int
    line: int
    event: str
    version: int = 1
    writer: str = ""
    ids: dict[str, Any] = field(default_factory=dict)


# What a line of each event names, beside the fields of `Line`; a line of another event may name anything.
EVENTS: dict[str, tuple[str, ...]] = {
    "drawn": ("group_index", "prompt_id", "hook", "indices"),
    "called": ("index", "group_index", "attempt", "hook"),
    "continued": ("group_index", "indices", "hook"),
    "held": ("index", "group_index", "reason"),
    "attempt_failed": ("index", "attempt", "reason"),
    "generated": ("rollout_id", "sibling", "index"),
    "graded": ("rollout_id", "sibling"),
    "dropped": ("reason",),
    "removed": ("rollout_id", "sibling", "reason"),
    "normalised": ("rollout_id",),
    "carried": ("rollout_id",),
    "left_out": ("rollout_id", "reason"),
    "trained": ("rollout_id", "sibling", "row", "weight", "step", "rank", "micro_batch"),
    "dummy": ("rollout_id", "sibling", "row", "weight", "step", "rank", "micro_batch"),
}

# What the ids of a line stand for, where their names do not say it.
IDS: dict[str, str] = {
    "group_index": "prompt group, unique in the run",
    "index": "slot: one execution of a prompt, unique in the run",
    "indices": "the slots of a prompt group",
    "hook": "dotted name; in `drawn` and `called` that of the scenario's `rollout.generate`",
    "attempt": "of the slot, from 1",
    "rollout_id": "one for all siblings of a slot; it may be the slot's index",
    "sibling": "from 0",
    "row": "of the table in reward_normalization.json, from 0",
    "weight": "as in the plan",
    "step": "of the iteration, from 0",
    "micro_batch": "of the rank in its step, from 0",
    "tokens_digest": "of `generated`, if given: sha256 of the sample's tokens as JSON without spaces",
}

# By the name of the file in `iterations/NNNN/`, but for `plan`, which `training.json` refers to.
RECORDS: dict[str, type] = {
    "download-prompts": PromptsRef,
    "rollout": RolloutsRef,
    "reward_normalization": RolloutsRef,
    "evaluation": RolloutsRef,
    "training": TrainedIteration,
    "plan": TrainingPlan,
    "sync": SyncResult,
    "replay": Replay,
    "invariance": Invariance,
}

TABLES: dict[str, pa.Schema] = {
    "rollouts": ROLLOUTS_SCHEMA,
    "log-probs": LOG_PROBS_SCHEMA,
    "sync-log-probs": SYNC_LOG_PROBS_SCHEMA,
    "held": PARTIAL_SCHEMA,
    "prompts": PROMPTS_SCHEMA,
}

# What a column holds, where its name does not say it.
MEANINGS: dict[str, dict[str, str]] = {
    "rollouts": ROLLOUTS_MEANINGS,
    "log-probs": LOG_PROBS_MEANINGS,
    "sync-log-probs": SYNC_LOG_PROBS_MEANINGS,
}


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def record(name: str, document: Any, where: str) -> Any:
    """A record of the format from its JSON document; what the format does not know is left out.

    Args:
        name: which record, a key of RECORDS.
        where: the file, for the error.
    Raises:
        NotOfTheFormat: fields lack or have another type; names them.
    """
    try:
        return _adapter(RECORDS[name]).validate_python(document)
    except ValidationError as cause:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'the document'}: {e['msg']}" for e in cause.errors()]
        raise _not_of_the_format(where, wrong) from cause


def table(name: str, found: pa.Table, where: str) -> pa.Table:
    """The table with the columns of its schema, in their types; further columns are left out.

    Args:
        name: which table, a key of TABLES.
    Raises:
        NotOfTheFormat: columns lack, hold nulls that they may not, or have a type that does not convert.
    """
    schema = TABLES[name]
    wrong = [f"column {n} is not there" for n in schema.names if n not in found.column_names]
    wrong += [
        f"column {f.name} has nulls"
        for f in schema
        if f.name in found.column_names and not f.nullable and found[f.name].null_count
    ]
    if wrong:
        raise _not_of_the_format(where, wrong)
    try:
        return found.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as cause:
        raise _not_of_the_format(where, [str(cause)]) from cause


def lines(data: bytes, where: str) -> list[dict[str, Any]]:
    """The events of a ledger segment, each with the ids that its event has to name.

    Raises:
        NotOfTheFormat: a line is no JSON object, or lacks fields; names the lines.
    """
    found, wrong = [], []
    for number, text in enumerate(data.splitlines()):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            wrong.append(f"line {number} is no JSON object")
            continue
        needed = ("run", "line", "event", *EVENTS.get(str(line.get("event")), ()))
        if lacking := [name for name in needed if name not in line]:
            wrong.append(f"line {number} ({line.get('event')}) lacks {', '.join(lacking)}")
        found.append(line)
    if wrong:
        raise _not_of_the_format(where, wrong)
    return found


def _not_of_the_format(where: str, wrong: list[str]) -> NotOfTheFormat:
    more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return NotOfTheFormat(
        f"{where} is not of record format {RECORDS_VERSION}: {'; '.join(wrong[:SHOWN])}{more}", ids=[where]
    )


def documents() -> dict[str, Any]:
    """The schemas by file name: JSON Schema of records, ledger lines and scenario, columns of the tables."""
    from infra.scenario.model import Scenario

    made = {f"{name}.schema.json": _adapter(kind).json_schema() for name, kind in RECORDS.items()}
    made["run.schema.json"] = _adapter(RunDocument).json_schema()
    made["scenario.schema.json"] = Scenario.model_json_schema()
    made["ledger-line.schema.json"] = _line_schema()
    made |= {f"{name}.parquet.json": _columns(schema, MEANINGS.get(name, {})) for name, schema in TABLES.items()}
    return made


def _line_schema() -> dict[str, Any]:
    schema = _adapter(Line).json_schema()
    del schema["properties"]["ids"]
    conditions = [
        {"if": {"properties": {"event": {"const": event}}}, "then": {"required": list(ids)}}
        for event, ids in EVENTS.items()
    ]
    schema["properties"] |= {name: {"description": words} for name, words in IDS.items()}
    return {**schema, "allOf": conditions}


def _columns(schema: pa.Schema, meanings: dict[str, str]) -> dict[str, Any]:
    columns = [
        {"name": f.name, "type": str(f.type), "nullable": f.nullable}
        | ({"description": meanings[f.name]} if f.name in meanings else {})
        for f in schema
    ]
    return {"records_version": RECORDS_VERSION, "columns": columns}


def write_documents(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, document in documents().items():
        (folder / name).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_documents(SCHEMAS)
