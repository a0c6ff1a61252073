"""Training steps of one trainer rank beside the same model with a plain loss, in one process of their own.

On CUDA the model is of the shape of Qwen2.5-0.5B, with random weights, and a step has 16,384 packed tokens; on a CPU
both are small, so that the same command can be tried there.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from infra.bench.random_model import SAMPLE
from infra.errors import ConfigurationError, InfraFault
from infra.megatron.device import actor_environment, resolve
from infra.scenario.load import load

ERROR_LINES = 12


def run(sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """By tokens of a step and the lengths of its samples: tokens a second, peak memory, and what `plain` has.

    Args:
        sizes: packed tokens of a step, multiples of 512.
    Raises:
        ConfigurationError: a size that is no multiple of 512.
        InfraFault: the rank's process ended with an error.
    """
    kind = resolve(load("tiny"))
    tokens = sizes or ((16_384,) if kind == "cuda" else (1024,))
    if odd := [size for size in tokens if size % SAMPLE]:
        raise ConfigurationError(f"The sizes of bench training are multiples of {SAMPLE} tokens.", ids=odd)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "infra.bench.training_rank", kind, folder, *map(str, tokens)]
        env = {**os.environ, **actor_environment(kind)}
        ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = "\n".join(ended.stderr.splitlines()[-ERROR_LINES:])
        raise InfraFault(f"The rank of bench training ended with {ended.returncode}. Its last lines:\n{last}")
    return json.loads(ended.stdout.splitlines()[-1])
