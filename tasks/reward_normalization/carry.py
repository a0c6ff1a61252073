"""Rollouts that no full step of the iteration before took (`training.trailing: carry`): they come first in this one.

Their advantages stay those of the iteration that generated them, where their prompt groups are whole. Older weights
generated them, so they are off-policy; the trainer recomputes old log-probs of everything it trains at the beginning of
an iteration, so on its first step every ratio is 1, theirs too.
"""

from dataclasses import dataclass

import pyarrow as pa

from infra.records.plan import TrainingPlan
from infra.records.rollouts import RolloutsRef, read_table
from infra.records.training import TrainedIteration
from infra.run import Run


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What an iteration takes over: rows of the rollouts and log-probs schemas, and `rollout_ids` by index."""

    table: pa.Table
    log_probs: pa.Table
    rollout_ids: tuple[int, ...]


def carried_into(run: Run, iteration: int) -> Carried | None:
    """What the iteration before left over for this one, from its records; None where it left nothing."""
    if iteration == 0 or run.scenario.training.trailing != "carry":
        return None
    before = {stage: run.finished(stage, iteration - 1) for stage in ("reward_normalization", "training")}
    assert before["reward_normalization"] and before["training"], f"iteration {iteration - 1} has not been trained"
    normalised = RolloutsRef.from_dict(before["reward_normalization"])
    plan = TrainingPlan.from_dict(run.store.read_json(TrainedIteration.from_dict(before["training"]).plan))
    ids = tuple(o.rollout_id for o in plan.left_out if o.reason == "carried")
    if not ids:
        return None
    table, log_probs = (_of(read_table(run.store, ref), ids) for ref in (normalised.table, normalised.log_probs))
    return Carried(table=table, log_probs=log_probs, rollout_ids=ids)


def _of(table: pa.Table, rollout_ids: tuple[int, ...]) -> pa.Table:
    wanted = set(rollout_ids)
    return table.filter([rollout in wanted for rollout in table["rollout_id"].to_pylist()])
