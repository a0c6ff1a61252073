"""Train and compute again what a run has stored, by processes of their own, and keep what came out for the checks.

The replay of an iteration has to give the run's weights digests. The same step in other shapes has to give the run's
gradient: it is computed at the run's first weights and not taken, so one trainer serves every shape of one layout.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from infra.megatron.device import dtype_name
from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.records.plan import TrainingPlan
from infra.records.replay import Invariance, NotCompared, Replay, Variant
from infra.records.rollouts import RolloutsRef, read_table, write_table
from infra.records.sources import ModelRef
from infra.records.training import StepResult, TrainedIteration
from infra.run import Run
from infra.store import ObjectRef, canonical_json, sha256
from tasks.training.cost import ModelShape
from tasks.training.plan import make_plan
from tasks.training.variants import (
    Iteration,
    Shape,
    merged_and_copied,
    other_layout,
    other_micro_batches,
    permuted,
    why_no_copies,
)

SMALL_PARAMETERS = 20_000_000  # of a model that a few more copies of do not matter in memory


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What an iteration was trained from, and what came of it."""

    rollouts: RolloutsRef
    trained: TrainedIteration

    @classmethod
    def of(cls, run: Run, iteration: int) -> Stored | None:
        """The records of an iteration; None where it has not been trained."""
        rollouts, trained = (run.finished(stage, iteration) for stage in ("reward_normalization", "training"))
        if rollouts is None or trained is None:
            return None
        return cls(rollouts=RolloutsRef.from_dict(rollouts), trained=TrainedIteration.from_dict(trained))

    @property
    def iteration(self) -> int:
        return self.trained.iteration


def replay_run(run: Run, model: ModelRef, cluster: RayCluster) -> None:
    """Do what `checks.determinism` and `checks.invariance` ask for and is not done; needs the cluster's GPUs free.

    Raises:
        TrainerUnavailable, NumericFailure: as training itself.
    """
    checks = run.scenario.checks
    again = iteration_to_replay(run) if checks.determinism else None
    compared = step_to_compare(run) if checks.invariance else None
    if again and run.finished("replay", again.iteration):
        again = None
    if compared and run.finished("invariance", compared[0].iteration):
        compared = None
    if again is None and compared is None:
        return
    variants = Variants(run, model, *compared) if compared else None
    trainer, other = MegatronTrainer(run, model, cluster), variants.other_trainer(cluster) if variants else None
    with contextlib.ExitStack() as started:
        started.enter_context(trainer)
        side_by_side = other and room_for_both(model, trainer, other)
        if other and side_by_side:
            started.enter_context(other)
        # Shapes before the replay: they need the first weights, the replay moves them.
        found = variants.of_this_layout(trainer) if variants else []
        if again:
            run.finish("replay", again.iteration, replay_iteration(run, again, trainer).to_dict())
        trainer.stop()
        if other and not side_by_side:
            started.enter_context(other)
        if variants:
            record = variants.record([*found, variants.of_other_layout(other)])
            run.finish("invariance", record.iteration, record.to_dict())


def room_for_both(model: ModelRef, one: MegatronTrainer, other: MegatronTrainer) -> bool:
    """Whether two trainers may hold the model at the same time, so that they start while the other does."""
    small = model.parameters <= SMALL_PARAMETERS
    return small and one.layout.world_size + other.layout.world_size <= one.cluster.offered_gpus()


def iteration_to_replay(run: Run) -> Stored | None:
    """The iteration that the scenario wants trained again; None where none was trained."""
    if run.scenario.checks.replay_iteration == "first":
        return Stored.of(run, 0)
    last = run.last_finished("training")
    return None if last is None else Stored.of(run, last)


def replay_iteration(run: Run, stored: Stored, trainer: MegatronTrainer) -> Replay:
    """Train an iteration again from what the store has of it, on a trainer that holds the run's first weights."""
    if stored.iteration:
        before = run.finished("training", stored.iteration - 1)
        assert before, f"iteration {stored.iteration} was trained, the one before has no record"
        trainer.load_state(TrainedIteration.from_dict(before).state)
    plan = stored.trained.plan
    steps = trainer.rehearse(stored.rollouts, plan, publish_gradients=set())
    return Replay(
        iteration=stored.iteration,
        rollouts=stored.rollouts.table,
        plan=plan,
        step_digests=tuple(s.weights_digest for s in steps),
    )


def step_to_compare(run: Run) -> tuple[Stored, StepResult] | None:
    """The run's first step with a published gradient that is not 0: up to there the weights are the first ones.

    None where there is none, or where the steps before have moved the weights all the same.
    """
    for iteration in range(run.scenario.rollout.iterations):
        stored = Stored.of(run, iteration)
        for step in stored.trained.steps if stored else ():
            if step.gradient is not None and step.gradient_norm > 0:
                return (stored, step) if stored else None
            if step.gradient_norm > 0 or run.scenario.training.weight_decay > 0:
                return None
    return None


class Variants:
    """Computes one step's gradient in other shapes, and publishes the tables and plans that it is computed from."""

    def __init__(self, run: Run, model: ModelRef, stored: Stored, step: StepResult):
        self.run, self.model, self.stored, self.step = run, model, stored, step
        config = ModelShape.from_config(json.loads((model.path / "config.json").read_text()))
        self.it = Iteration(
            table=read_table(run.store, stored.rollouts.table),
            log_probs=read_table(run.store, stored.rollouts.log_probs),
            plan=TrainingPlan.from_dict(run.store.read_json(stored.trained.plan)),
            scenario=run.scenario,
            planner=lambda table, scenario: make_plan(table, scenario, config, stored.iteration),
        )
        self.other = other_layout(self.it)

    def of_this_layout(self, trainer: MegatronTrainer) -> list[Variant | NotCompared]:
        """Every shape that the run's own layout can take, on a trainer that holds the first weights."""
        return list(self._of_this_layout(trainer))

    def _of_this_layout(self, trainer: MegatronTrainer) -> Iterator[Variant | NotCompared]:
        own = self.step.gradient
        assert own is not None
        yield self._variant("permuted", permuted(self.it, self.run.scenario.seed), trainer, own)
        cut = other_micro_batches(self.it, self.step.step)
        if cut:
            yield self._variant("micro-batches", cut, trainer, own)
        else:
            yield NotCompared(name="micro-batches", reason="no other size cuts the step otherwise")
        if reason := why_no_copies(self.run.scenario.training):
            yield NotCompared(name="copies", reason=reason)
        else:
            merged, copied = merged_and_copied(self.it)
            yield self._variant("copies", copied, trainer, self._gradient("merged", merged, trainer))

    def other_trainer(self, cluster: RayCluster) -> MegatronTrainer | None:
        """A trainer of another number of data-parallel ranks, not started; None where the cluster has not the GPUs."""
        trainer = MegatronTrainer(replace(self.run, scenario=self.other.scenario), self.model, cluster)
        return trainer if trainer.layout.world_size <= cluster.offered_gpus() else None

    def of_other_layout(self, trainer: MegatronTrainer | None) -> Variant | NotCompared:
        if trainer is None:
            needed = self.other.scenario.training.world_size
            return NotCompared(name="data-parallel", reason=f"it needs {needed} GPUs, which the cluster has not")
        own = self.step.gradient
        assert own is not None
        return self._variant("data-parallel", self.other, trainer, own)

    def record(self, found: list[Variant | NotCompared]) -> Invariance:
        return Invariance(
            iteration=self.stored.iteration,
            step=self.step.step,
            dtype=dtype_name(self.run.scenario),
            variants=tuple(v for v in found if isinstance(v, Variant)),
            not_compared=tuple(v for v in found if isinstance(v, NotCompared)),
        )

    def _variant(self, name: str, shape: Shape, trainer: MegatronTrainer, against: ObjectRef) -> Variant:
        return Variant(name=name, change=shape.change, gradient=self._gradient(name, shape, trainer), against=against)

    def _gradient(self, name: str, shape: Shape, trainer: MegatronTrainer) -> ObjectRef:
        rollouts, plan = self._publish(name, shape)
        (step,) = trainer.rehearse(rollouts, plan, publish_gradients={self.step.step}, only=self.step.step)
        assert step.gradient is not None, name
        return step.gradient

    def _publish(self, name: str, shape: Shape) -> tuple[RolloutsRef, ObjectRef]:
        def key(file: str) -> str:
            return self.run.key("iterations", self.stored.iteration, "variants", file)

        store, plan = self.run.store, self._as_far_as_needed(shape.plan).to_dict()
        rollouts = replace(
            self.stored.rollouts,
            table=write_table(store, key(f"{name}-{{digest}}.parquet"), shape.table),
            log_probs=write_table(store, key(f"{name}-log-probs-{{digest}}.parquet"), shape.log_probs),
        )
        return rollouts, store.publish_json(key(f"{name}-plan-{sha256(canonical_json(plan))[:12]}.json"), plan)

    def _as_far_as_needed(self, plan: TrainingPlan) -> TrainingPlan:
        """The one step alone, but where its advantages depend on the whole iteration."""
        if self.run.scenario.training.whitens:
            return plan
        return replace(plan, steps=tuple(s for s in plan.steps if s.index == self.step.step))
