"""SGLang's own Engine, without HTTP: python -m infra.bench.own_engine FOLDER KIND MODEL SIZE …

What it generates, and how fast it takes weights of its own process, is the floor for what goes over HTTP.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from infra.bench.gate import answer, wait_for_go
from infra.bench.rollout import ROUNDS, TOKENS, prompts, server_settings
from infra.sglang.address import ServerAddress
from infra.sglang.flags import dtype_on, server_arguments
from infra.sglang.launch import import_for

PUSHES = 5


def main(folder: Path, kind: Any, model: Path, sizes: list[int]) -> None:
    import_for(kind)
    from sglang import Engine
    from sglang.srt.server_args import prepare_server_args

    arguments = server_arguments(
        server_settings(kind, sizes),
        model_path=model,
        served_name="own-engine",
        device=kind,
        dtype=dtype_on(kind),
        deterministic=False,
        seed=0,
        address=ServerAddress("127.0.0.1", 0),
    )
    engine = Engine(server_args=prepare_server_args(arguments))
    generate(engine, kind, min(sizes), -1)
    wait_for_go(folder)
    rows = [{"samples": size, "tokens_a_second": round(rate(engine, kind, size))} for size in sizes]
    answer(folder, {"sizes": rows, "weights_of_its_own_process": pushes(engine, model, kind)})
    engine.shutdown()


def rate(engine: Any, kind: Any, size: int) -> float:
    """Median tokens a second of the rounds."""
    made = []
    for number in range(ROUNDS):
        started = time.perf_counter()
        made.append(generate(engine, kind, size, number) / (time.perf_counter() - started))
    return median(made)


def generate(engine: Any, kind: Any, size: int, number: int) -> int:
    """Tokens of one round: the same requests as over HTTP, log-probs included."""
    prompt, response = TOKENS[kind]
    ids = prompts(size, number, prompt, vocabulary=4096)
    params = [{"max_new_tokens": response, "temperature": 1.0, "sampling_seed": k} for k in range(size)]
    answers = engine.generate(input_ids=ids, sampling_params=params, return_logprob=True)
    return sum(len(answer["output_ids"]) for answer in answers)


def pushes(engine: Any, model: Path, kind: Any) -> dict[str, Any]:
    """Seconds to load the whole model from tensors of this process."""
    import torch
    from safetensors.torch import load_file

    torch.multiprocessing.set_sharing_strategy("file_system")
    named = [(name, t.to(kind)) for name, t in load_file(model / "model.safetensors").items()]
    seconds = []
    for _ in range(PUSHES):
        started = time.perf_counter()
        engine.update_weights_from_tensor(named)
        seconds.append(round(time.perf_counter() - started, 4))
    return {
        "bytes": sum(t.numel() * t.element_size() for _, t in named),
        "median_seconds": median(seconds),
        "seconds": seconds,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), [int(size) for size in sys.argv[4:]])
