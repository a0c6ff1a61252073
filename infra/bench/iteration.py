"""One whole iteration on one CPU or GPU: what it costs besides the engine's and the trainer's own work."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.bench.gate import Gated
from infra.errors import ConfigurationError
from infra.megatron.device import resolve
from infra.scenario.load import load

ON_CUDA, ON_CPU = 256, 16


def gated(folder: Path, kind: str, rollouts: int | None = None, ranks: int = 1) -> Gated:
    """The process that measures; see `iteration_run`.

    Args:
        rollouts: of an iteration.
        ranks: of the trainer, each with a server on its GPU.
    """
    each = rollouts or (ON_CUDA if kind == "cuda" else ON_CPU)
    return Gated("infra.bench.iteration_run", folder, kind, str(each), str(ranks))


def run(sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """Seconds of each part of an iteration of `fanout-signal`, and of weight sync and hand-over.

    On CUDA the model is of the shape of Qwen2.5-0.5B, with random weights.

    Args:
        sizes: rollouts of an iteration, one number, a multiple of 8.
    Raises:
        ConfigurationError: another number of sizes, or no multiple of 8.
    """
    kind = resolve(load("tiny"))
    if sizes and (len(sizes) > 1 or sizes[0] % 8):
        raise ConfigurationError("The size of bench iteration is one number of rollouts, a multiple of 8.")
    with (
        tempfile.TemporaryDirectory() as name,
        gated(Path(name) / "iteration", kind, sizes[0] if sizes else None) as measured,
    ):
        return {"device": kind, **measured.measure()}
