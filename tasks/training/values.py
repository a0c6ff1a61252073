"""A critic's values, where the estimator is gae: one for each response token, as the hook kept them with the sample.

fanline trains no critic. Whoever has one asks it in the generate hook and keeps its answers in `metadata["values"]`.
"""

import json
import math

import pyarrow as pa

from infra.errors import ContractViolation
from infra.records.plan import TrainingPlan

KEY = "values"


def values_of(metadata: str, response_length: int) -> list[float] | None:
    """[response_length] values of one stored sample; None where they are not there, too few, or not all finite.

    Args:
        metadata: the sample's, as JSON.
    """
    found = json.loads(metadata).get(KEY)
    if not isinstance(found, list) or len(found) != response_length:
        return None
    return found if all(isinstance(v, int | float) and math.isfinite(v) for v in found) else None


def refuse_missing_values(plan: TrainingPlan, table: pa.Table) -> None:
    """Every sample that trains a token has a value for each token of its response.

    Args:
        table: [samples] of the rollouts schema, whose rows the plan names.
    Raises:
        ContractViolation: a hook kept none, or not one finite number a token; names the rollouts.
    """
    masks, metadata = table["loss_mask"].to_pylist(), table["metadata"].to_pylist()
    wrong = {
        sample.rollout_id
        for step in plan.steps
        for sample in step.samples()
        if any(masks[sample.row]) and values_of(metadata[sample.row], len(masks[sample.row])) is None
    }
    if wrong:
        raise ContractViolation(
            f"Rollouts {', '.join(map(str, sorted(wrong)))} have no value for every response token, and "
            "training.estimator gae takes advantages over a critic's values.",
            next_step=f'Keep them in the sample\'s metadata["{KEY}"], one finite number a token of the response.',
            ids=sorted(wrong),
        )
