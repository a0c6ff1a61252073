"""What Megatron's schedule runs for each micro-batch, and the schedule's own call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel import schedules
from torch import Tensor

from infra.megatron.config import ModelShape
from infra.megatron.packing import PackedBatch
from infra.megatron.responses import response_log_probs
from infra.megatron.rotary import rotation
from infra.scenario.training import Training
from tasks.training.loss.loss import token_loss

MicroBatchFigures = dict[str, Tensor]
LossFunction = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """A micro-batch with what its loss compares with, [responses] each; all None off the last stage.

    Args:
        old: the trainer's log-probs before the iteration's first step.
        reference: log-probs of the reference policy, where the scenario has a KL.
        engine: log-probs of the engine that sampled, where the scenario corrects for them.
    """

    batch: PackedBatch
    old: Tensor | None = None
    advantages: Tensor | None = None
    reference: Tensor | None = None
    engine: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LogProbForward:
    """Forward step that gives each micro-batch's log-probs [responses] at a temperature."""

    shape: ModelShape
    temperature: float

    def __call__(self, batches: Iterator[PackedBatch], model: torch.nn.Module) -> tuple[Tensor, LossFunction]:
        batch = next(batches)

        def collect(logits: Tensor, non_loss_data: bool) -> Tensor:
            assert non_loss_data
            return response_log_probs(logits, batch, self.shape, self.temperature)[0]

        return run_model(model, batch, self.shape), collect


@dataclass(frozen=True, kw_only=True)
class LossForward:
    """Forward step of training: the plan's loss of one micro-batch, and the figures that the step reports.

    Megatron divides the summed gradient by the summed count. The count is of rollouts, so the loss here is multiplied
    by the step's rollouts (`weight` holds their inverse): the result is the plan's loss exactly, under any split.
    """

    shape: ModelShape
    training: Training
    temperature: float
    rollouts_in_mean: int

    def __call__(self, batches: Iterator[TrainingBatch], model: torch.nn.Module) -> tuple[Tensor, LossFunction]:
        item = next(batches)

        def loss(logits: Tensor) -> tuple[Tensor, Tensor, MicroBatchFigures]:
            return self.loss(logits, item)

        return run_model(model, item.batch, self.shape), loss

    def loss(self, logits: Tensor, item: TrainingBatch) -> tuple[Tensor, Tensor, MicroBatchFigures]:
        batch = item.batch
        assert item.old is not None and item.advantages is not None
        log_probs, entropy = response_log_probs(logits, batch, self.shape, self.temperature)
        losses, metrics = token_loss(
            log_probs=log_probs,
            old_log_probs=item.old,
            reference_log_probs=item.reference,
            advantages=item.advantages,
            segments=batch.sample_of,
            mask=batch.mask,
            training=self.training,
            entropy=entropy if self.training.entropy_coefficient else entropy.detach(),
            engine_log_probs=item.engine,
        )
        weights = torch.tensor([s.weight * self.rollouts_in_mean for s in batch.samples], dtype=torch.float64)
        weights = weights.to(losses.device)
        total = (weights.float()[batch.sample_of] * losses).sum()
        return total, _rollouts_opened(batch, losses.device), _figures(batch, losses.detach(), weights, metrics)


def _rollouts_opened(batch: PackedBatch, device: torch.device) -> Tensor:
    # Megatron adds the count up over context ranks too: only one of them counts.
    counts = parallel_state.get_context_parallel_rank() == 0
    return torch.tensor(sum(s.opens_rollout for s in batch.samples) * counts, dtype=torch.int, device=device)


def _figures(batch: PackedBatch, losses: Tensor, weights: Tensor, metrics: Mapping[str, Tensor]) -> MicroBatchFigures:
    """[samples] terms of the loss, and sums over the trained tokens of real samples; `ratio_error` is the largest."""
    per_sample = torch.zeros(len(batch.samples), dtype=torch.float64, device=losses.device)
    per_sample.index_add_(0, batch.sample_of, losses.double())
    dummy = torch.tensor([s.dummy for s in batch.samples], device=losses.device)[batch.sample_of]
    real = {name: torch.where(dummy, 0, values).double() for name, values in metrics.items()}
    return {
        "terms": per_sample * weights,
        "tokens": (~dummy & (batch.mask > 0)).sum(),
        "clipped": real["clipped"].sum(),
        "old_minus_new": real["approx_kl"].sum(),
        "entropy": real["entropy"].sum(),
        "ratio_error": real["ratio_error"].max() if len(dummy) else losses.new_zeros(()),
    }


def run_model(model: torch.nn.Module, batch: PackedBatch, shape: ModelShape) -> Tensor:
    """[1, tokens, vocabulary of this rank] logits on the last stage, hidden states on the others."""
    dtype: Any = model.config.params_dtype  # type: ignore[union-attr]
    turned = rotation(batch.position_ids[0], head_dim=shape.head_dim, base=shape.rope_base, dtype=dtype)
    sequences = replace(batch.sequences, rotation=turned)
    return model(batch.input_ids, batch.position_ids, None, packed_seq_params=sequences)


def forward_backward(
    wrapped: list[DistributedDataParallel], step: Callable, batches: Sequence[TrainingBatch]
) -> list[Any]:
    """Megatron's schedule over a step's micro-batches; gradients end reduced and divided. Last stage: their figures."""
    return _schedule(wrapped, step, batches, longest(b.batch for b in batches), forward_only=False)


@torch.no_grad()
def forward_only(wrapped: list[DistributedDataParallel], step: Callable, batches: Sequence[PackedBatch]) -> list[Any]:
    """Megatron's schedule without backward. On the last stage what `step` collects, one entry a micro-batch."""
    # A virtual pipeline takes whole groups of micro-batches: the last one is repeated, what comes of that is left out.
    group: Any = wrapped[0].config.microbatch_group_size_per_vp_stage if len(wrapped) > 1 else 1
    filled = [*batches, *[batches[-1]] * (-len(batches) % group)]
    found = _schedule(wrapped, step, filled, longest(batches), forward_only=True, collect_non_loss_data=True)
    return found[: len(batches)]


def longest(batches: Any) -> int:
    return max(len(b.labels) for b in batches)


def _schedule(
    wrapped: list[DistributedDataParallel], step: Callable, batches: Sequence[Any], tokens: int, **how: Any
) -> Any:
    run: Any = schedules.get_forward_backward_func()
    return run(
        forward_step_func=step,
        # Every part of a virtual pipeline runs every micro-batch.
        data_iterator=iter(batches) if len(wrapped) == 1 else [iter(batches) for _ in wrapped],
        model=wrapped,
        num_microbatches=len(batches),
        seq_length=tokens,
        micro_batch_size=1,
        **how,
    )
