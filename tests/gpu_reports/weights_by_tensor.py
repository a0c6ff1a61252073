"""Every tensor of the server after a sync from memory and from disk.

python -m tests.gpu_reports.weights_by_tensor FOLDER; JSON

Qwen2.5-0.5B's shape with random weights (small on a CPU), trained for two iterations on one GPU in turn.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from infra.bench.iteration_run import HOOK_PACKAGES, overrides
from infra.bench.plain_run import normalization_stage, rollout_stage, sync_stage, training_stage
from infra.megatron.weights import by_folder, push
from infra.reference_stack import reference_stack
from infra.run import Run
from infra.scenario.load import load
from infra.sglang.address import ServerAddress
from infra.sglang.serving import ServingEngine
from infra.sources.host import this_host
from infra.sources.model import fetch_model
from infra.stopwatch import Stopwatch
from tasks.download.stage import publish_prompts
from tasks.training.task import publish_plan
from tests.by_tensor import differ, keep, pushed_into, same_as
from tests.gpu_reports.several_gpus import CUDA, KIND, random_model

ROLLOUTS, ITERATIONS = 32, 2
NORM = "model.norm.weight"


def main(folder: Path) -> dict[str, Any]:
    """One more iteration publishes the weights that it starts from: those of the sync before."""
    path = random_model(folder / "model")
    run = Run(
        "by-tensor", load("fanout-signal", overrides(path, KIND, ROLLOUTS, 1)), str(folder / "store"), folder / "spool"
    )
    model = fetch_model(str(path), this_host())
    prompts, found = publish_prompts(run, model), {}
    with reference_stack(run, model, Stopwatch()) as (engine, trainer):
        for iteration in range(ITERATIONS):
            generated = rollout_stage(run, model, prompts, engine.client, iteration, HOOK_PACKAGES)
            rollouts = normalization_stage(run, generated, HOOK_PACKAGES)
            trained = training_stage(run, model, rollouts, trainer)
            synced = sync_stage(run, rollouts, trained, trainer, engine)
            found[f"sync {iteration}"] = {"seconds": synced.seconds, "log-prob error": synced.max_log_prob_error}
        keep(servers(engine))
        generated = rollout_stage(run, model, prompts, engine.client, ITERATIONS, HOOK_PACKAGES)
        rollouts = normalization_stage(run, generated, HOOK_PACKAGES)
        trained = trainer.train(rollouts, publish_plan(run, model, rollouts), publish_gradients={0})
        sync_stage(run, rollouts, trained, trainer, engine)
        before = trained.steps[0].weights_before
        assert before is not None, "step 0 was asked to publish them"
        weights = load_file(folder / "store" / before.key)
        started = time.monotonic()
        same_as(servers(engine), weights, path, folder / "same")
        found["by memory"] = {"tensors": len(weights), "equal": True, "seconds": time.monotonic() - started}
        with pushed_into(servers(engine)):
            sent = push(weights, servers(engine), "by-disk", by_folder(run.spool))
        same_as(servers(engine), weights, path, folder / "again")
        found["by disk"] = {"tensors": sent.tensors, "equal": True, "seconds": sent.seconds}
        other = {**weights, NORM: weights[NORM] * 1.02}
        found["another tensor is seen"] = differ(lambda: same_as(servers(engine), other, path, folder / "other"))
    return {"device": KIND, "parameters": sum(t.numel() for t in weights.values()), **found}


def servers(engine: ServingEngine) -> list[ServerAddress]:
    """Those of this host, as they are now: a restart changes them."""
    return [receiver for receiver in engine.receivers if isinstance(receiver, ServerAddress)]


if __name__ == "__main__":
    os.environ.setdefault("FANLINE_LOGICAL_GPUS", "0" if CUDA else "1")
    print(json.dumps(main(Path(sys.argv[1]))))
