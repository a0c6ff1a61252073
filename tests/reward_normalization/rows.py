"""Stored rollouts for tests: one dict of the rollouts schema a sample."""

from typing import Any


def row(rollout: int, group: int, sibling: int = 0, reward: float | None = 0.0, **changed: Any) -> dict[str, Any]:
    response = changed.pop("response_length", 3)
    return {
        "iteration": 0,
        "group_index": group,
        "index": rollout,
        "rollout_id": rollout,
        "sibling": sibling,
        "prompt_id": f"p{group}",
        "epoch": 0,
        "attempt": 1,
        "prompt": "1+1=",
        "label": "2",
        "response": "2",
        "tokens": list(range(4 + response)),
        "response_length": response,
        "loss_mask": [1] * response,
        "status": "completed",
        "remove_sample": False,
        "reward": reward,
        "advantage": None,
        "weight_version": "0",
        "metadata": "{}",
        **changed,
    }
