"""The engine's log-probs, where the loss corrects for them: complete before anything is trained."""

import pyarrow as pa

from infra.errors import ContractViolation
from infra.records.plan import TrainingPlan


def refuse_missing_log_probs(plan: TrainingPlan, table: pa.Table, log_probs: pa.Table) -> None:
    """Every sample that trains a token has one engine log-prob for each token of its response.

    Args:
        table: [samples] of the rollouts schema, whose rows the plan names.
        log_probs: rows of the log-probs schema, by (rollout_id, sibling).
    Raises:
        ContractViolation: a hook kept none, or fewer; names the rollouts.
    """
    known = {(r["rollout_id"], r["sibling"]): len(r["log_probs"]) for r in log_probs.to_pylist()}
    masks = table["loss_mask"].to_pylist()
    wrong = {
        sample.rollout_id
        for step in plan.steps
        for sample in step.samples()
        if any(masks[sample.row]) and known.get((sample.rollout_id, sample.sibling)) != len(masks[sample.row])
    }
    if wrong:
        raise ContractViolation(
            f"The engine's log-probs of rollouts {', '.join(map(str, sorted(wrong)))} are not on record for every "
            "response token, and training.importance_correction weighs the loss by them.",
            next_step="Keep what generate returns in rollout_log_probs, or set training.importance_correction to none.",
            ids=sorted(wrong),
        )
