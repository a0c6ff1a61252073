"""Train one iteration on its normalised rollouts, and carry the new weights back into the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import task_run

from infra.faults import engine_was_lost
from infra.ledger import LedgerWriter
from infra.records.plan import TrainingPlan
from infra.records.rollouts import RolloutsRef, read_table
from infra.records.sources import ModelRef
from infra.records.training import SyncResult, TrainedIteration
from infra.run import Run
from infra.store import ObjectRef, canonical_json, sha256
from tasks.training.cost import ModelShape
from tasks.training.engine_log_probs import refuse_missing_log_probs
from tasks.training.plan import make_plan
from tasks.training.signal import first_step_with_signal
from tasks.training.values import refuse_missing_values

if TYPE_CHECKING:
    from infra.megatron.trainer import MegatronTrainer
    from infra.sglang.serving import ServingEngine


def publish_plan(run: Run, model: ModelRef, rollouts: RolloutsRef) -> ObjectRef:
    """Plan the steps of an iteration and publish the plan; equal rollouts give an equal plan.

    Where the loss uses the engine's log-probs, their digest is part of the plan, and so of the plan's own.

    Raises:
        ContractViolation: the loss needs engine log-probs, or the estimator values, that are not on record.
    """
    shape = ModelShape.from_config(json.loads((model.path / "config.json").read_text()))
    table = read_table(run.store, rollouts.table)
    record = make_plan(table, run.scenario, shape, rollouts.iteration)
    if run.scenario.training.uses_values:
        refuse_missing_values(record, table)
    if run.scenario.training.uses_engine_log_probs:
        refuse_missing_log_probs(record, table, read_table(run.store, rollouts.log_probs))
        record = replace(record, engine_log_probs=rollouts.log_probs.sha256)
    plan = record.to_dict()
    name = f"plan-{sha256(canonical_json(plan))[:12]}.json"
    return run.store.publish_json(run.key("iterations", rollouts.iteration, name), plan)


def record_left_out(run: Run, plan: ObjectRef) -> tuple[ObjectRef, ...]:
    """A ledger line with the reason for every rollout that a plan leaves out; no segment where it leaves none out."""
    record = TrainingPlan.from_dict(run.store.read_json(plan))
    if not record.left_out:
        return ()
    with LedgerWriter(run.run_id, "training", record.iteration, run.spool) as ledger:
        ledger.write_all("left_out", [{"rollout_id": o.rollout_id, "reason": o.reason} for o in record.left_out])
        return (ledger.seal(run.store),)


def gradients_to_publish(run: Run, rollouts: RolloutsRef, plan: ObjectRef) -> set[int]:
    """The steps of a planned iteration whose unclipped gradient the scenario wants in the store.

    `first` is the first step of the run that trains on an advantage other than 0: with another, a comparison would be
    of nothing with nothing. Where the first iteration has none, its first step stands in for the record.
    """
    wanted, record = run.scenario.training.publish_gradients, TrainingPlan.from_dict(run.store.read_json(plan))
    if wanted == "none":
        return set()
    if wanted == "all":
        return {step.index for step in record.steps}
    if any(_published_one(run, before) for before in range(rollouts.iteration)):
        return set()
    first = first_step_with_signal(read_table(run.store, rollouts.table), record)
    if first is None:
        return {0} if rollouts.iteration == 0 else set()
    return {first}


def _published_one(run: Run, iteration: int) -> bool:
    """Whether an iteration published a gradient that is not 0."""
    trained = run.finished("training", iteration)
    return bool(trained) and any(s["gradient"] and s["gradient_norm"] > 0 for s in trained["steps"])


@task(task_run_name="train, iteration {rollouts.iteration}", cache_policy=NO_CACHE, persist_result=False)
def train_iteration(run: Run, model: ModelRef, rollouts: RolloutsRef, trainer: MegatronTrainer) -> TrainedIteration:
    """All optimizer steps of one iteration; a finished iteration is not trained again."""
    if record := run.finished("training", rollouts.iteration):
        return TrainedIteration.from_dict(record)
    plan = publish_plan(run, model, rollouts)
    trained = trainer.train(rollouts, plan, publish_gradients=gradients_to_publish(run, rollouts, plan))
    trained = replace(trained, ledger=(*trained.ledger, *record_left_out(run, plan)))
    run.finish("training", rollouts.iteration, trained.to_dict())
    return trained


@task(
    task_run_name="sync weights, iteration {rollouts.iteration}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=engine_was_lost,
)
def sync_weights(
    run: Run, rollouts: RolloutsRef, trained: TrainedIteration, trainer: MegatronTrainer, engine: ServingEngine
) -> SyncResult:
    """Push the trained weights into the engine and see that it answers with them. A lost engine is started again."""
    from tasks.training.sync import push_and_compare

    if task_run.run_count > 1 or not engine.running:
        engine.restart()
    result = push_and_compare(run, rollouts, trained, trainer, engine)
    for made in result.hand_overs:
        get_run_logger().info("memory to the %s in %.2f s, GiB free: %s", made.to, made.seconds, made.free_gib)
    if not run.finished("sync", rollouts.iteration):
        run.finish("sync", rollouts.iteration, result.to_dict())
    return result


@task(task_run_name="train again, {run.run_id}", cache_policy=NO_CACHE, persist_result=False)
def replay_training(run: Run, model: ModelRef, engine: ServingEngine, trainer: MegatronTrainer) -> None:
    """Train stored rollouts again, on other processes and in other shapes, for determinism and invariance.

    Engine and ranks of the run are ended before: they have done their part, and their memory and GPUs are needed.
    """
    from tasks.training.replay import replay_run

    engine.stop()
    trainer.stop()
    replay_run(run, model, trainer.cluster)
