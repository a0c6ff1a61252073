"""Training steps of one trainer rank beside the same model with a plain loss, in one process of their own.

On CUDA the model is of the shape of Qwen2.5-0.5B, with random weights, and a step has 16,384 packed tokens; on a CPU
both are small, so that the same command can be tried there.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.bench.gate import Gated
from infra.bench.random_model import SAMPLE
from infra.errors import ConfigurationError
from infra.megatron.device import Kind, actor_environment, resolve
from infra.scenario.load import load


def gated(folder: Path, kind: Kind, sizes: Sequence[int] | None = None) -> Gated:
    """The process that measures; see `training_rank`."""
    tokens = sizes or ((16_384,) if kind == "cuda" else (1024,))
    return Gated("infra.bench.training_rank", folder, kind, *map(str, tokens), env=actor_environment(kind))


def run(sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """By tokens of a step and the lengths of its samples: tokens a second, peak memory, and what `plain` has.

    Args:
        sizes: packed tokens of a step, multiples of 512.
    Raises:
        ConfigurationError: a size that is no multiple of 512.
        InfraFault: the rank's process ended with an error.
    """
    if odd := [size for size in sizes or () if size % SAMPLE]:
        raise ConfigurationError(f"The sizes of bench training are multiples of {SAMPLE} tokens.", ids=odd)
    with (
        tempfile.TemporaryDirectory() as name,
        gated(Path(name) / "training", resolve(load("tiny")), sizes) as measured,
    ):
        return measured.measure()
