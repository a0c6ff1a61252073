"""A reward for models with random weights, whose answers are never right: gradients are not zero with it."""

from typing import Any


async def coin(args: Any, sample: Any) -> float:
    """1.0 or 0.0, by the parity of the sample's tokens."""
    return float(sum(sample.tokens) % 2)
