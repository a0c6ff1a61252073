"""The smallest fan-out: one generation, copied. Its siblings are equal, so it tests plumbing and not the loss."""

import copy
from collections.abc import Sequence
from typing import Any

from hooks.normalize import by_sample
from hooks.stock import generate


async def compact_generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """One generation and N = 1 + index % 3 deep copies of it, all with `rollout_id = index`."""
    generated = await generate(args, sample, sampling_params)
    siblings = [copy.deepcopy(generated) for _ in range(1 + generated.index % 3)]
    for sibling in siblings:
        sibling.rollout_id = generated.index
    return siblings


def grpo_normalize_by_group_index(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """`hooks.normalize.by_sample` under slime's name: statistics over the samples of a prompt group."""
    return by_sample(args, samples)
