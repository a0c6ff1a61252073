"""The engine's log-probs of stored samples, for micro-batches whose loss corrects for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infra.megatron.packing import PackedBatch
from infra.records.rollouts import RolloutsRef, read_table
from infra.store import ArtifactStore


def engine_log_probs(
    store: ArtifactStore, rollouts: RolloutsRef, packed: Sequence[Sequence[PackedBatch]]
) -> list[list[Tensor]]:
    """For each step and micro-batch [responses] float32; 0 in samples that train no token and have none."""
    rows = read_table(store, rollouts.log_probs).to_pylist()
    known = {(r["rollout_id"], r["sibling"]): torch.tensor(r["log_probs"], dtype=torch.float32) for r in rows}
    return [[_of_batch(batch, known) for batch in step] for step in packed]


def _of_batch(batch: PackedBatch, known: dict[tuple[int, int], Tensor]) -> Tensor:
    parts = []
    for sample, length, mask in zip(batch.samples, batch.lengths, batch.split(batch.mask), strict=True):
        key = sample.rollout_id, sample.sibling
        parts.append(known[key] if mask.any() or key in known else torch.zeros(length))
    return torch.cat(parts).to(batch.mask.device)
