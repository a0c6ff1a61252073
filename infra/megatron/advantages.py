"""Advantages of every token of an iteration on this rank: the scenario's estimator, then whitening over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from infra.megatron.numeric import NumericFailure
from infra.megatron.packing import PackedBatch
from infra.scenario.training import Training
from tasks.training.loss.advantages import token_advantages, whiten
from tasks.training.loss.kl import kl_estimate

Steps = Sequence[Sequence[Tensor | None]]


def iteration_advantages(
    packed: Sequence[Sequence[PackedBatch]],
    old: Steps,
    reference: Steps,
    values: Steps,
    training: Training,
    iteration: int,
) -> list[list[Tensor]]:
    """For each step and micro-batch [responses] float32. A collective over the data-parallel ranks where it whitens.

    Statistics of whitening are in float64, over the trained tokens of all steps of the iteration and all ranks; a dummy
    has no vote. Tensor and context ranks hold the same tokens, so they come to the same values.

    Args:
        packed: for each step, this rank's micro-batches.
        old, reference: for each step and micro-batch [responses] log-probs before the iteration's first step, and of
            the reference; None where they are not known.
        values: as these, of a critic.
    Raises:
        NumericFailure: an advantage is not finite, so that no mean of them would be; names step and rollouts.
    """
    found = [
        [_of_batch(*each, training) for each in zip(*columns, strict=True)]
        for columns in zip(packed, old, reference, values, strict=True)
    ]
    if not training.whitens:
        return [[a.float() for a in step] for step in found]
    _refuse_infinite(packed, found, iteration)
    flat = [a for step in found for a in step]
    mask = [_voting(b) for step in packed for b in step]
    group: Any = parallel_state.get_data_parallel_group()
    white = iter(whiten(torch.cat(flat), torch.cat(mask), group=group).float().split([len(a) for a in flat]))
    return [[next(white) for _ in step] for step in found]


def _of_batch(
    batch: PackedBatch, old: Tensor | None, reference: Tensor | None, values: Tensor | None, training: Training
) -> Tensor:
    kl = None
    if training.kl_reward_coefficient and old is not None and reference is not None:
        kl = kl_estimate(old.double(), reference.double(), training.kl_estimator)
    return token_advantages(batch.advantages.double(), batch.sample_of, batch.mask, training, kl=kl, values=values)


def _voting(batch: PackedBatch) -> Tensor:
    """[responses] 1 at the trained tokens of real samples."""
    real = torch.tensor([not s.dummy for s in batch.samples], device=batch.mask.device)
    return batch.mask * real[batch.sample_of]


def _refuse_infinite(packed: Sequence[Sequence[PackedBatch]], found: list[list[Tensor]], iteration: int) -> None:
    for step, (batches, advantages) in enumerate(zip(packed, found, strict=True)):
        wrong = {
            batch.samples[k].rollout_id
            for batch, values in zip(batches, advantages, strict=True)
            for k in batch.sample_of[~values.isfinite() & (_voting(batch) > 0)].tolist()
        }
        if wrong:
            raise NumericFailure.of("advantage", iteration, step, sorted(wrong))
