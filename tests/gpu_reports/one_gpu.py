"""What one GPU has to show besides `fanline bench gpu`; on a CPU the same parts run, small.

python -m tests.gpu_reports.one_gpu PART… [--folder=FOLDER]; parts: twice, recompute, smol, shape, signal,
kill, memory, drill, rollouts; JSON
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.bench import rollout
from tests.gpu_reports import several_gpus as several

FAULTS = (
    "sign-flipped",
    "denominator-per-sample",
    "temperature-missing",
    "rank-not-reduced",
    "clip-ignored",
    "weights-not-synced",
    "moments-lost",
)


def twice(folder: Path) -> dict[str, Any]:
    """`tiny` in the GPU's own type, two times: equal weights."""
    first, second = (_run("tiny", [], folder / str(k)) for k in range(2))
    return {"equal": first["weights"] == second["weights"] is not None, "first": first, "second": second}


def recompute(folder: Path) -> dict[str, Any]:
    """`tiny` with activations kept, and computed again."""
    kept, again = (_run("tiny", [f"training.recompute={how}"], folder / how) for how in ("false", "true"))
    return {"equal": kept["weights"] == again["weights"] is not None, "kept": kept, "computed again": again}


def signal(folder: Path) -> dict[str, Any]:
    """`fanout-signal` as it is, on the GPU's own type."""
    return _run("fanout-signal", [], folder)


def rollouts(folder: Path) -> dict[str, Any]:
    """256 samples at a time through hooks and by the bare client, in more rounds than the bench has."""
    model = several.random_model(folder / "model")
    vocabulary, sizes = json.loads((model / "config.json").read_text())["vocab_size"], (256 if several.CUDA else 16,)
    with rollout.server(model, several.KIND, sizes, folder, deterministic=False) as engine:
        engine.wait_ready()
        bench = rollout.RolloutBench(engine, vocabulary, rollout.TOKENS[several.KIND], folder)
        return {"rows": bench.rows(sizes, rounds=15 if several.CUDA else 2)}


def smol(folder: Path) -> dict[str, Any]:
    """`smol`, real weights, in float32."""
    return _run("smol", ["dtype=float32"], folder)


def memory(folder: Path) -> dict[str, Any]:
    """A micro-batch that no GPU holds: the run says so by exit code 3, and leaves no process and no memory taken."""
    model = several.random_model(folder / "model")
    tokens = 640 if several.CUDA else 16
    own = [
        f"model={model}",
        "rollout.prompts=32",
        f"rollout.max_response_tokens={tokens}",
        "rollout.reward=infra.bench.coin.coin",
        "rollout.concurrency=128",
        "training.global_batch_size=128",
        "training.max_tokens_per_gpu=400000",
        "engine.max_running_requests=128",
        *several.QUICK,
    ]
    os.environ["FANLINE_HOOK_PACKAGES"] = "hooks,infra.bench"
    made = _run("fanout-signal", own, folder)
    return {**made, "left running": several.left_running(), "gpus held": several.held()}


def drill(folder: Path) -> dict[str, Any]:
    """Faults of every part of the trainer, in float32."""
    folder.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "infra.cli",
        "drill",
        *FAULTS,
        "--set=dtype=float32",
        "--set=training.data_parallel=1",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return {"exit code": done.returncode, "matrix": json.loads(done.stdout)}
    except ValueError:
        return {"exit code": done.returncode, "error": done.stderr[-3000:]}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "twice": twice,
    "recompute": recompute,
    "smol": smol,
    "signal": signal,
    "shape": lambda folder: several.shape(1, folder),
    "kill": lambda folder: several.kill(1, folder),
    "memory": memory,
    "drill": drill,
    "rollouts": rollouts,
}


def _run(scenario: str, own: list[str], folder: Path) -> dict[str, Any]:
    made = several.run(scenario, [*several.memory(), "training.data_parallel=1", *own], folder)
    return {name: value for name, value in made.items() if name != "store"}


if __name__ == "__main__":
    several.parts_of(PARTS, sys.argv[1:])
