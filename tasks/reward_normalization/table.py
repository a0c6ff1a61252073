"""What normalisation did, by prompt group and by rollout, for people and for the ledger."""

import statistics
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from infra.text import shown


def group_rows(table: pa.Table) -> list[dict[str, Any]]:
    """One row a prompt group: rewards of its rollouts, their mean and unbiased std, advantages. JSON values only.

    Args:
        table: [samples] of the rollouts schema, normalised.
    """
    rows = []
    for group, rollouts in _rollouts_by_group(table).items():
        rewards = [statistics.fmean(r["rewards"]) for r in rollouts if r["rewards"]]
        row = {
            "group_index": group,
            "prompt_id": rollouts[0]["prompt_id"],
            "rollouts": len(rollouts),
            "fan-out": [r["siblings"] for r in rollouts],
            "rewards": rewards,
            "mean": statistics.fmean(rewards) if rewards else float("nan"),
            "std": statistics.stdev(rewards) if len(rewards) > 1 else float("nan"),
            "advantages": [round(r["advantages"][0], 4) for r in rollouts],
        }
        rows.append({name: shown(value) for name, value in row.items()})
    return rows


def ledger_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """One row a rollout: its samples' rewards and advantages, and which siblings are removed."""
    for group, rollouts in _rollouts_by_group(table).items():
        for r in rollouts:
            names = ("rollout_id", "siblings", "advantages", "removed", "rewards")
            yield {"group_index": group, **{name: r[name] for name in names}}


def _rollouts_by_group(table: pa.Table) -> dict[int, list[dict[str, Any]]]:
    """Rollouts of every group in order of first occurrence; a reward that is missing is not listed."""
    names = ("group_index", "rollout_id", "sibling", "prompt_id", "reward", "advantage", "remove_sample")
    rollouts: dict[tuple[int, int], dict[str, Any]] = {}
    for row in table.select(list(names)).to_pylist():
        key = row["group_index"], row["rollout_id"]
        lists = {"siblings": 0, "rewards": [], "advantages": [], "removed": []}
        of = rollouts.setdefault(key, {"rollout_id": key[1], "prompt_id": row["prompt_id"], **lists})
        of["siblings"] += 1
        of["advantages"].append(row["advantage"])
        if row["reward"] is not None:
            of["rewards"].append(row["reward"])
        if row["remove_sample"]:
            of["removed"].append(row["sibling"])
    groups: dict[int, list[dict[str, Any]]] = {}
    for (group, _), rollout in rollouts.items():
        groups.setdefault(group, []).append(rollout)
    return groups
