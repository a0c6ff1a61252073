"""The same iteration in other shapes: each of them has to give the same gradient of a step.

A shape is a rollouts table and a plan that the product's own planner makes of it. Rollouts keep their steps, so the
step of the same index is the same step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.records.plan import Step, TrainingPlan
from infra.records.rollouts import with_column
from infra.scenario.model import Scenario
from infra.scenario.training import Training

Planner = Callable[[pa.Table, Scenario], TrainingPlan]
COPIES = (1, 2, 3)  # siblings that the rollouts get in turn: unequal numbers show a denominator that counts samples


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Rollouts (schema ROLLOUTS_SCHEMA), the engine's log-probs of them, and their plan under a scenario."""

    change: str
    table: pa.Table
    log_probs: pa.Table
    plan: TrainingPlan
    scenario: Scenario


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The stored iteration that is brought into other shapes.

    Args:
        planner: makes the plan of a table under a scenario, as the training stage does.
    """

    table: pa.Table
    log_probs: pa.Table
    plan: TrainingPlan
    scenario: Scenario
    planner: Planner

    def shape(
        self,
        change: str,
        *,
        table: pa.Table | None = None,
        log_probs: pa.Table | None = None,
        training: dict[str, int | None] | None = None,
    ) -> Shape:
        """This iteration with other rows, or other settings of `training`."""
        changed = self.scenario.training.model_copy(update=training or {})
        scenario = self.scenario.model_copy(update={"training": changed})
        table = self.table if table is None else table
        return Shape(
            change=change,
            table=table,
            log_probs=self.log_probs if log_probs is None else log_probs,
            plan=self.planner(table, scenario),
            scenario=scenario,
        )


def permuted(it: Iteration, seed: int) -> Shape:
    """Rows in another order, and the rollouts of every step in another order too: their indices are dealt out anew."""
    rng = np.random.default_rng(seed)
    rollouts, index = (it.table[name].to_numpy() for name in ("rollout_id", "index"))
    dealt = index.copy()
    for step in it.plan.steps:
        own = np.unique(index[np.isin(rollouts, step.rollout_ids)])
        other = dict(zip(own.tolist(), rng.permutation(own).tolist(), strict=True))
        inside = np.isin(rollouts, step.rollout_ids)
        dealt[inside] = [other[k] for k in index[inside].tolist()]
    table = with_column(it.table, "index", dealt).take(rng.permutation(len(dealt)))
    return it.shape("rows of the table and rollouts of each step in another order", table=table)


def other_micro_batches(it: Iteration, step: int) -> Shape | None:
    """Less, then more in a micro-batch: the first size that cuts the step otherwise; None where none does."""
    name = "max_tokens_per_gpu" if it.scenario.training.max_tokens_per_gpu else "micro_batch_size"
    size: int = getattr(it.scenario.training, name)
    for other in (max(size // 2, 1), 1, size * 2, size * 4):  # at 1 every sample stands alone
        shape = it.shape(f"training.{name} {other} instead of {size}", training={name: other})
        if _micro_batches(shape.plan.steps[step]) != _micro_batches(it.plan.steps[step]):
            return shape
    return None


def _micro_batches(step: Step) -> set[frozenset[tuple[int, int]]]:
    batches = [b for rank in step.ranks for b in rank]
    return {frozenset((s.rollout_id, s.sibling) for s in b.samples if not s.dummy) for b in batches}


def other_data_parallel(training: Training) -> int:
    """Two ranks where the run has one, else one."""
    return 2 if training.data_parallel == 1 else 1


def other_layout(it: Iteration) -> Shape:
    """The same samples over another number of data-parallel ranks."""
    here, other = it.scenario.training.data_parallel, other_data_parallel(it.scenario.training)
    change = f"training.data_parallel {other} instead of {here}"
    return it.shape(change, training={"data_parallel": other})


def why_no_copies(training: Training) -> str | None:
    """Why copies of a sibling are not worth as much as one here; None where they are."""
    if training.loss_mean != "rollout":
        return f"with training.loss_mean {training.loss_mean} more siblings weigh more, by definition"
    if training.whitens:
        return "whitening counts every trained token, so more siblings change the advantages, by definition"
    return None


def merged_and_copied(it: Iteration) -> tuple[Shape, Shape]:
    """Every rollout with one of its siblings alone, and with 1, 2 or 3 copies of that sibling, in turn."""
    chosen = _one_row_of_each_rollout(it.table)
    position = np.argsort(np.argsort(it.table["index"].to_numpy()[chosen], kind="stable"))
    merged = _with_siblings(it, chosen, np.ones(len(chosen), np.int64), "one sibling of each rollout alone")
    counts = np.array(COPIES)[position % len(COPIES)]
    return merged, _with_siblings(it, chosen, counts, "1, 2 or 3 copies of one sibling, against that sibling alone")


def _one_row_of_each_rollout(table: pa.Table) -> list[int]:
    """Row numbers: the first sibling that trains a token, or the first one; aborted ones go before, they count."""
    columns = ["rollout_id", "sibling", "status", "remove_sample", "loss_mask"]
    rows = table.select(columns).to_pylist()
    chosen: dict[int, int] = {}
    worth: dict[int, tuple[bool, bool, int]] = {}
    for number, row in enumerate(rows):
        idle = row["remove_sample"] or not any(row["loss_mask"])
        key = (row["status"] != "aborted", idle, row["sibling"])
        if row["rollout_id"] not in worth or key < worth[row["rollout_id"]]:
            worth[row["rollout_id"]], chosen[row["rollout_id"]] = key, number
    return list(chosen.values())


def _with_siblings(it: Iteration, rows: list[int], counts: np.ndarray, change: str) -> Shape:
    repeated = np.repeat(rows, counts)
    siblings = np.concatenate([np.arange(count) for count in counts])
    before = it.table.take(repeated)
    keys = zip(before["rollout_id"].to_pylist(), before["sibling"].to_pylist(), strict=True)
    known = {(r["rollout_id"], r["sibling"]): r["log_probs"] for r in it.log_probs.to_pylist()}
    log_probs = [
        {"rollout_id": key[0], "sibling": sibling, "log_probs": known[key]}
        for key, sibling in zip(keys, siblings.tolist(), strict=True)
        if key in known
    ]
    table = with_column(before, "sibling", siblings)
    return it.shape(change, table=table, log_probs=pa.Table.from_pylist(log_probs, schema=it.log_probs.schema))
