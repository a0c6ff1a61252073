"""Log hooks: figures of an iteration's samples, shown in the summary beside the pipeline's own."""

from collections.abc import Sequence
from typing import Any

from hooks.sample import rollout_of


def lengths(args: Any, iteration: int, samples: Sequence[Any]) -> dict[str, float]:
    """Mean and largest response in tokens, the share of truncated samples, and samples a rollout."""
    if not samples:
        return {"samples": 0.0}
    tokens = [sample.response_length for sample in samples]
    return {
        "response tokens, mean": sum(tokens) / len(tokens),
        "response tokens, largest": float(max(tokens)),
        "truncated share": sum(sample.status.value == "truncated" for sample in samples) / len(samples),
        "samples a rollout": len(samples) / len({rollout_of(sample) for sample in samples}),
    }
