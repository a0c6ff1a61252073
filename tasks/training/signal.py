"""Which step of a plan carries signal: only there can a gradient be compared with anything."""

import pyarrow as pa

from infra.records.plan import TrainingPlan


def first_step_with_signal(table: pa.Table, plan: TrainingPlan) -> int | None:
    """Index of the first step that trains a token with an advantage other than 0; None where no step does.

    Args:
        table: [samples] of the rollouts schema, normalised.
        plan: made from this table.
    """
    advantages, masks = table["advantage"].to_pylist(), table["loss_mask"].to_pylist()
    for step in plan.steps:
        if any(advantages[s.row] and any(masks[s.row]) for s in step.samples()):
            return step.index
    return None
