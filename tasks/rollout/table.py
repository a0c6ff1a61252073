"""Finished rollouts as rows of the published tables, and the ids that earlier iterations used."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hooks.sample import Sample
from infra.errors import ContractViolation
from infra.ledger import read_segment
from infra.records.rollouts import RolloutsRef, read_table
from infra.run import Run
from infra.store import ArtifactStore, ObjectRef
from tasks.rollout.contract import Rollout


def rollout_rows(rollouts: Sequence[Rollout], scalar: Any) -> list[dict[str, Any]]:
    """One row a sample (schema ROLLOUTS_SCHEMA), by (index, sibling).

    Args:
        rollouts: graded, in order of their index.
        scalar: the number of a sample's reward, from (reward, rollout).
    """
    return [_row(r, k, s, scalar(s.reward, r)) for r in rollouts for k, s in enumerate(r.siblings)]


def log_prob_rows(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """One row for each sample whose hook kept the engine's log-probs (schema LOG_PROBS_SCHEMA)."""
    return [
        {"rollout_id": s.rollout_id, "sibling": k, "log_probs": list(map(float, s.rollout_log_probs))}
        for r in rollouts
        for k, s in enumerate(r.siblings)
        if s.rollout_log_probs is not None
    ]


def _row(rollout: Rollout, sibling: int, sample: Sample, reward: float) -> dict[str, Any]:
    slot = rollout.slot
    return {
        "iteration": slot.iteration,
        "group_index": slot.group_index,
        "index": slot.index,
        "rollout_id": sample.rollout_id,
        "sibling": sibling,
        "prompt_id": slot.prompt_id,
        "epoch": slot.epoch,
        "attempt": rollout.attempt,
        "prompt": sample.prompt if isinstance(sample.prompt, str) else _json(sample.prompt, "prompt", rollout),
        "label": sample.label,
        "response": sample.response,
        "tokens": [int(t) for t in sample.tokens],
        "response_length": sample.response_length,
        "loss_mask": trained_mask(sample),
        "status": sample.status.value,
        "remove_sample": bool(sample.remove_sample),
        "reward": reward,
        "advantage": None,
        "weight_version": versions([sample]),
        "metadata": _json(_metadata(sample), "metadata", rollout),
    }


def trained_mask(sample: Sample) -> list[int]:
    """[response_length] of 0/1; a sample without a mask trains on its whole response."""
    return [1] * sample.response_length if sample.loss_mask is None else [int(m) for m in sample.loss_mask]


def versions(samples: Sequence[Sample]) -> str:
    """The weight version that generated these samples; several are joined by commas, oldest first."""
    return ",".join(dict.fromkeys(str(v) for s in samples for v in s.weight_versions))


def _metadata(sample: Sample) -> dict[str, Any]:
    extra = {"train_metadata": sample.train_metadata} if sample.train_metadata else {}
    parts = {"reward_parts": sample.reward} if isinstance(sample.reward, dict) else {}
    return {**sample.metadata, **extra, **parts}


def _json(value: Any, what: str, rollout: Rollout) -> str:
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as cause:
        raise ContractViolation(
            f"Hook {rollout.hook} left a {what} that is not JSON: {cause}, for {rollout.slot.where}.",
            next_step=f"Keep plain values in sample.{what}: text, numbers, lists, dicts.",
            ids=[rollout.slot.group_index, rollout.slot.index],
        ) from cause


def used_ids(run: Run, iteration: int, stage: str = "rollout") -> frozenset[int]:
    """Rollout ids of a stage's earlier iterations: of what is stored, and of what a dynamic filter dropped.

    Args:
        stage: `rollout` or `evaluation`, whose ids are in namespaces of their own.
    """
    records = [run.finished(stage, i) for i in range(iteration)]
    refs = [RolloutsRef.from_dict(record) for record in records if record]
    used = [_ids_in(run.store, ref.table) for ref in refs]
    if run.scenario.rollout.dynamic_filter:
        used += [_dropped_ids(run.store, run.run_id, segment) for ref in refs for segment in ref.ledger]
    return frozenset().union(*used)


@lru_cache(maxsize=1024)
def _ids_in(store: ArtifactStore, table: ObjectRef) -> frozenset[int]:
    return frozenset(read_table(store, table).column("rollout_id").to_pylist())


@lru_cache(maxsize=1024)
def _dropped_ids(store: ArtifactStore, run_id: str, segment: ObjectRef) -> frozenset[int]:
    """A rollout that was dropped before it was finished never had an id."""
    events = read_segment(store, run_id, segment)
    return frozenset(e["rollout_id"] for e in events if e["event"] == "dropped" and "rollout_id" in e)
