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

from infra.errors import InfraFault
from infra.megatron.device import actor_environment, resolve
from infra.scenario.load import load


def run(sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """By tokens of a step and the lengths of its samples: tokens a second, peak memory, and what `plain` has.

    Args:
        sizes: packed tokens of a step, multiples of 512.
    Raises:
        InfraFault: the rank's process ended with an error.
    """
    kind = resolve(load("tiny"))
    tokens = sizes or ((16_384,) if kind == "cuda" else (1024,))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "infra.bench.training_rank", kind, folder, *map(str, tokens)]
        ended = subprocess.run(
            command, env={**os.environ, **actor_environment(kind)}, stdout=subprocess.PIPE, text=True, check=False
        )
    if ended.returncode:
        raise InfraFault(f"The rank of bench training ended with {ended.returncode}.", next_step="Its error is above.")
    return json.loads(ended.stdout.splitlines()[-1])
