"""A critic's values of stored samples, for micro-batches whose advantages are taken over them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import torch
from torch import Tensor

from infra.megatron.packing import PackedBatch
from tasks.training.values import values_of


def stored_values(table: pa.Table, packed: Sequence[Sequence[PackedBatch]]) -> list[list[Tensor]]:
    """For each step and micro-batch [responses] float64; 0 in samples that train no token and have none.

    Args:
        table: of the rollouts schema, whose rows the samples name.
    """
    metadata = table["metadata"].to_pylist()
    return [[_of_batch(batch, metadata) for batch in step] for step in packed]


def _of_batch(batch: PackedBatch, metadata: Sequence[str]) -> Tensor:
    known = [
        values_of(metadata[sample.row], length) or [0.0] * length
        for sample, length in zip(batch.samples, batch.lengths, strict=True)
    ]
    return torch.tensor([v for values in known for v in values], dtype=torch.float64, device=batch.mask.device)
