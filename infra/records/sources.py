"""What the download stage hands on: a model folder on this host and the prompts in the store."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from infra.store import ObjectRef

PROMPTS_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),  # <source row number>, stable over runs
        pa.field("prompt", pa.string(), nullable=False),  # rendered text
        pa.field("label", pa.string(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),  # JSON object for hooks and graders
    ],
    metadata={"fanline.prompts": "1"},
)


@dataclass(frozen=True, kw_only=True)
class ModelRef:
    """A model in Hugging Face layout (config.json, safetensors, tokenizer) in a local folder.

    `digest` covers config and weights; `revision` is the commit or version that the source resolved to.
    """

    uri: str
    revision: str
    path: Path
    digest: str
    parameters: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


@dataclass(frozen=True, kw_only=True)
class PromptsRef:
    """The data set as prompts, in source order (schema PROMPTS_SCHEMA); `evaluation`: those that are never trained."""

    uri: str
    revision: str
    table: ObjectRef
    rows: int
    skipped_rows: tuple[str, ...] = ()
    evaluation: "PromptsRef | None" = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PromptsRef":
        skipped = tuple(data["skipped_rows"])
        evaluation = cls.from_dict(data["evaluation"]) if data.get("evaluation") else None
        table = ObjectRef.from_dict(data["table"])
        return cls(**{**data, "table": table, "skipped_rows": skipped, "evaluation": evaluation})
