"""Stored rollouts: one Parquet row a sample, in a schema that any training stack can write.

Engine log-probs live in a file of their own: they depend on batch composition, everything in this table does not, so
the table of a seeded run is equal to the byte.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store import ArtifactStore, ObjectRef, sha256

ROLLOUTS_VERSION = 1

ROLLOUTS_SCHEMA = pa.schema(
    [
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("group_index", pa.int64(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("rollout_id", pa.int64(), nullable=False),
        pa.field("sibling", pa.int32(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("response", pa.string(), nullable=False),
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("response_length", pa.int32(), nullable=False),
        pa.field("loss_mask", pa.list_(pa.int8()), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("remove_sample", pa.bool_(), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("advantage", pa.float64()),
        pa.field("weight_version", pa.string(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
    ],
    metadata={"fanline.rollouts": str(ROLLOUTS_VERSION)},
)

ROLLOUTS_MEANINGS = {
    "index": "slot of the rollout: unique in the run, seeds its generation",
    "rollout_id": "the same for all siblings of a slot, unique in the run",
    "sibling": "position among the siblings, from 0",
    "prompt_id": "row of the source: stable over epochs and runs",
    "attempt": "from 1: the try of the rollout that succeeded",
    "prompt": "source text; chat messages as JSON",
    "tokens": "prompt and response",
    "response_length": "how many of the tokens, from the end, are the response",
    "loss_mask": "[response_length] 1 for tokens in the loss, else 0",
    "status": "completed, truncated, aborted or failed",
    "remove_sample": "true: neither in the statistics nor in the loss",
    "reward": "raw, that of its rollout; null before grading and for rollouts that are not trained",
    "advantage": "one number for all tokens; null before normalisation",
    "weight_version": "of the weights that generated it",
    "metadata": "a JSON object",
}

LOG_PROBS_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", pa.int64(), nullable=False),
        pa.field("sibling", pa.int32(), nullable=False),
        pa.field("log_probs", pa.list_(pa.float32()), nullable=False),
    ],
    metadata={"fanline.log_probs": str(ROLLOUTS_VERSION)},
)

LOG_PROBS_MEANINGS = {"log_probs": "[response_length], one for each response token, masked ones too"}

SYNC_LOG_PROBS_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", pa.int64(), nullable=False),
        pa.field("sibling", pa.int32(), nullable=False),
        pa.field("engine", pa.list_(pa.float64()), nullable=False),
        pa.field("trainer", pa.list_(pa.float64()), nullable=False),
        pa.field("before", pa.list_(pa.float64()), nullable=False),
        pa.field("after", pa.list_(pa.float64()), nullable=False),
    ],
    metadata={"fanline.sync_log_probs": str(ROLLOUTS_VERSION)},
)

SYNC_LOG_PROBS_MEANINGS = {
    "engine": "[response_length] in nats, after the sync",
    "trainer": "[response_length], of the same weights at the engine's temperature",
    "before": "[response_length], of the weights before the iteration's steps",
    "after": "[response_length], of those after them, at the same temperature as before",
}


PARTIAL_SCHEMA = pa.schema(  # the engine calls of slots that go on in the next iteration
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("group_index", pa.int64(), nullable=False),
        pa.field("call", pa.string(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),  # -1: the slot itself
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("asked", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("log_probs", pa.list_(pa.float64()), nullable=False),
        pa.field("weight_versions", pa.list_(pa.string()), nullable=False),
        pa.field("input_digest", pa.string(), nullable=False),
    ],
    metadata={"fanline.partial": str(ROLLOUTS_VERSION)},
)


def write_table(store: ArtifactStore, key: str, table: pa.Table) -> ObjectRef:
    """Publish a table as Parquet; equal tables give equal bytes. `{digest}` in the key stands for their sha256."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", store_schema=True)
    data = buffer.getvalue()
    return store.publish(key.replace("{digest}", sha256(data)[:16]), data)


def read_table(store: ArtifactStore, ref: ObjectRef) -> pa.Table:
    """Read a published Parquet table, checked against its digest."""
    return pq.read_table(io.BytesIO(store.read(ref)))


def rollouts_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A table of the rollouts schema from one dict a sample."""
    return pa.Table.from_pylist(list(rows), schema=ROLLOUTS_SCHEMA)


def partial_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=PARTIAL_SCHEMA)


def log_probs_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=LOG_PROBS_SCHEMA)


def sync_log_probs_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SYNC_LOG_PROBS_SCHEMA)


def with_column(table: pa.Table, name: str, values: Sequence[Any] | np.ndarray) -> pa.Table:
    """The table with one column of the schema replaced."""
    position = table.schema.get_field_index(name)
    return table.set_column(position, table.schema.field(name), pa.array(values, type=table.schema.field(name).type))


@dataclass(frozen=True, kw_only=True)
class RolloutsRef:
    """The rollouts of one iteration as a stage left them.

    `log_probs` holds the engine's log-probs by (rollout_id, sibling); `ledger` the segments that the stage wrote;
    `held` the calls of rollouts that go on in the next iteration (schema PARTIAL_SCHEMA), where there are any;
    `figures` what is worth showing beside (the log hook's, and how much a dynamic filter dropped).
    """

    iteration: int
    table: ObjectRef
    log_probs: ObjectRef
    ledger: tuple[ObjectRef, ...]
    samples: int
    rollouts: int
    generated_tokens: int
    weight_version: str
    figures: dict[str, float] = field(default_factory=dict)
    held: ObjectRef | None = None

    def to_dict(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        refs = {"table": self.table.to_dict(), "log_probs": self.log_probs.to_dict()}
        held = self.held.to_dict() if self.held else None
        return {**plain, **refs, "ledger": [r.to_dict() for r in self.ledger], "held": held}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "RolloutsRef":
        refs = {name: ObjectRef.from_dict(data[name]) for name in ("table", "log_probs")}
        ledger = tuple(ObjectRef.from_dict(r) for r in data["ledger"])
        held = ObjectRef.from_dict(data["held"]) if data.get("held") else None
        return cls(**{**data, **refs, "ledger": ledger, "held": held})
