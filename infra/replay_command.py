"""`fanline replay`: train a stored iteration again, and say whether the weights come out equal."""

import json
import sys
from typing import Any

from infra.errors import ConfigurationError
from infra.megatron.trainer import MegatronTrainer
from infra.open_run import code_digest
from infra.pool.hold import command_lease
from infra.ray_cluster import RayCluster
from infra.run import Run
from infra.run_command import stdout_for_the_result
from infra.stored_run import find_stored, model_of


def replay_stored(store_uri: str, name: str, iteration: int, *, as_json: bool) -> int:
    """Replay an iteration by processes of its own and print what came out; 0 where it is equal to the bit, else 1.

    Raises:
        ConfigurationError: no such run, or the iteration has not been trained.
        TrainerUnavailable: the trainer could not be started, or a rank died.
    """
    run = find_stored(store_uri, name)
    with stdout_for_the_result():
        told = replay(run, iteration)
    if as_json:
        print(json.dumps(told))
    else:
        print(in_words(told))
    return 0 if told["equal"] else 1


def replay(run: Run, iteration: int) -> dict[str, Any]:
    """Digests after each step, of the run and of the replay, and whether all are equal."""
    from tasks.training.replay import Stored, replay_iteration

    stored = Stored.of(run, iteration)
    if stored is None:
        last = run.last_finished("training")
        there = "no iteration has" if last is None else f"iterations 0 to {last} have"
        raise ConfigurationError(f"Iteration {iteration} of run {run.run_id} is not on record: {there} been trained.")
    model, then = model_of(run), run.store.read_json(run.key("run.json")).get("code_digest")
    if then != code_digest():
        print("fanline: the code is not the one that the run was made with", file=sys.stderr)
    with (
        command_lease(f"replay-{run.run_id}", run.scenario),
        RayCluster.for_run(run) as cluster,
        MegatronTrainer(run, model, cluster) as trainer,
    ):
        found = replay_iteration(run, stored, trainer)
    steps = [
        {"step": step.step, "weights": step.weights_digest, "replayed": digest}
        for step, digest in zip(stored.trained.steps, found.step_digests, strict=True)
    ]
    return {
        "run": run.run_id,
        "iteration": iteration,
        "equal": all(s["weights"] == s["replayed"] for s in steps),
        "same_code": then == code_digest(),
        "steps": steps,
    }


def in_words(told: dict[str, Any]) -> str:
    where = f"iteration {told['iteration']} of {told['run']}"
    if told["equal"]:
        digest = told["steps"][-1]["weights"]
        return f"equal  {where}: {len(told['steps'])} steps give weights {digest} again"
    first = next(s for s in told["steps"] if s["weights"] != s["replayed"])
    return f"DIFFERENT  {where}: after step {first['step']} weights {first['replayed']}, were {first['weights']}"
