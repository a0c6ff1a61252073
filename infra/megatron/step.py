"""One optimizer step on one rank: Megatron's schedule, gradient reduction and Adam, and what is reported of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infra.ledger import LedgerWriter
from infra.megatron.core import TrainerCore
from infra.megatron.forward import LossForward, MicroBatchFigures, TrainingBatch, forward_backward
from infra.megatron.gradient import unclipped_norm, whole_gradient
from infra.megatron.numeric import NumericFailure
from infra.megatron.reports import RankStep
from infra.megatron.tensors import publish_tensors
from infra.records.plan import Step
from infra.run import Run
from infra.store import ObjectRef


@dataclass(frozen=True, kw_only=True)
class StepRunner:
    """Runs the steps of one iteration on this rank.

    Args:
        ledger: of this rank; only the leader of a data-parallel share writes what its share trained. None for a
            rehearsal, which trains nothing new.
        update: whether the optimizer takes the step; without, gradients are all there is of it.
    """

    core: TrainerCore
    run: Run
    iteration: int
    rollouts_per_step: int
    ledger: LedgerWriter | None
    update: bool = True

    def take(self, step: Step, batches: Sequence[TrainingBatch], *, publish_gradient: bool) -> RankStep:
        """Zero gradients, forward and backward over the micro-batches, reduce, step.

        Raises:
            NumericFailure: a loss or the gradient is not finite; the optimizer has not stepped.
        """
        started = time.monotonic()
        core = self.core
        core.optimizer.zero_gradients()
        figures = forward_backward(core.wrapped, self._loss(step), batches)
        self._refuse_infinite_losses(step, batches, figures)
        norm = unclipped_norm(core.model, core.optimizer)
        if not torch.isfinite(torch.tensor(norm)):
            raise NumericFailure.of("gradient", self.iteration, step.index, step.rollout_ids)
        gradient = self._publish_gradient(step) if publish_gradient else None
        weights = self._publish_weights(step) if publish_gradient and self.update else None
        learning_rate = core.optimizer.learning_rate
        if self.update:
            core.optimizer.step(self.rollouts_per_step)
        if self.ledger is not None and core.place.leader:
            self._write_ledger(self.ledger, step, batches)
        return RankStep(
            step=step.index,
            **(self._sums(batches, figures) if core.place.leader else {}),
            gradient_norm=norm,
            learning_rate=learning_rate,
            weights_digest=core.whole_digest(),
            gradient=gradient,
            weights_before=weights,
            seconds=time.monotonic() - started,
        )

    def _loss(self, step: Step) -> LossForward:
        scenario = self.run.scenario
        return LossForward(
            shape=self.core.shape,
            training=scenario.training,
            temperature=scenario.rollout.temperature,
            rollouts_in_mean=step.rollouts_in_mean,
        )

    def _refuse_infinite_losses(
        self, step: Step, batches: Sequence[TrainingBatch], figures: Sequence[MicroBatchFigures]
    ) -> None:
        for item, figure in zip(batches, figures, strict=False):
            finite = torch.isfinite(figure["terms"]).tolist()
            if not all(finite):
                wrong = {s.rollout_id for s, fine in zip(item.batch.samples, finite, strict=True) if not fine}
                raise NumericFailure.of("loss", self.iteration, step.index, sorted(wrong))

    def _publish_gradient(self, step: Step) -> ObjectRef | None:
        gradient = whole_gradient(self.core.wrapped, self.core.model, self.core.shape)
        if self.core.place.rank != 0:
            return None
        return self._publish("gradient", step, gradient)

    def _publish_weights(self, step: Step) -> ObjectRef | None:
        """The weights that the step starts from; those of the run's first step are the model's own."""
        if self.iteration == step.index == 0:
            return None
        weights = self.core.whole_weights()
        return self._publish("weights-before", step, weights) if self.core.place.rank == 0 else None

    def _publish(self, name: str, step: Step, tensors: Mapping[str, Tensor]) -> ObjectRef:
        key = self.run.key("iterations", self.iteration, f"{name}-{step.index:04d}-{{digest}}.safetensors")
        return publish_tensors(self.run, key, {k: t.detach().float().cpu() for k, t in tensors.items()})

    def _sums(self, batches: Sequence[TrainingBatch], figures: Sequence[MicroBatchFigures]) -> dict:
        terms: dict[int, float] = {}
        for item, figure in zip(batches, figures, strict=True):
            for sample, term in zip(item.batch.samples, figure["terms"].tolist(), strict=True):
                if not sample.dummy:
                    terms[sample.rollout_id] = terms.get(sample.rollout_id, 0.0) + term
        return {
            "terms": terms,
            "tokens": int(_total(figures, "tokens")),
            "clipped": int(_total(figures, "clipped")),
            "old_minus_new": float(_total(figures, "old_minus_new")),
            "entropy": float(_total(figures, "entropy")),
            "ratio_error": max(float(f["ratio_error"]) for f in figures),
        }

    def _write_ledger(self, ledger: LedgerWriter, step: Step, batches: Sequence[TrainingBatch]) -> None:
        where = {"step": step.index, "rank": self.core.place.data}
        samples = [(number, sample) for number, item in enumerate(batches) for sample in item.batch.samples]
        for event, dummy in (("trained", False), ("dummy", True)):
            ledger.write_all(
                event,
                [
                    {
                        **where,
                        "micro_batch": number,
                        "rollout_id": sample.rollout_id,
                        "sibling": sample.sibling,
                        "row": sample.row,
                        "weight": sample.weight,
                    }
                    for number, sample in samples
                    if sample.dummy is dummy
                ],
            )
        ledger.write("step", **where, micro_batches=len(batches), rollouts=len(step.rollout_ids))


def _total(figures: Sequence[MicroBatchFigures], name: str) -> Tensor:
    return torch.stack([f[name] for f in figures]).sum()
