"""`fanline replay` on a stored iteration: processes of its own, and an exit code that says whether they agree."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra.errors import ConfigurationError
from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.replay_command import in_words, replay
from infra.run import Run
from infra.sources.host import this_host
from infra.sources.model import fetch_model
from tests.infra.megatron.samples import make_run, write_model
from tests.training.test_replay import train

ROOT = Path(__file__).parents[2]
STEPS = [{"step": 0, "weights": "a", "replayed": "a"}, {"step": 1, "weights": "b", "replayed": "c"}]


def stored(folder: Path) -> Run:
    """A run whose model source is a folder, opened and not trained."""
    model = write_model(folder / "model", tied=True).path
    run = make_run(folder, "stored-1", data_parallel=1)
    source = run.scenario.model.model_copy(update={"uri": str(model)})
    run = replace(run, scenario=run.scenario.model_copy(update={"model": source}))
    document = {"records_version": 1, "run": run.run_id, "scenario": run.scenario.model_dump(mode="json")}
    run.store.publish_json(run.key("run.json"), document)
    return run


@pytest.mark.trainer
def test_a_stored_iteration_is_trained_again_to_the_bit(tmp_path: Path, ray_cluster: RayCluster) -> None:
    run = stored(tmp_path)
    model = fetch_model(run.scenario.model.uri, this_host())
    with MegatronTrainer(run, model, ray_cluster) as trainer:
        trained = train(run, model, trainer)
    command = [sys.executable, "-m", "infra.cli", "replay", "stored", "--store", run.store_uri, "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment["FANLINE_HOME"] = str(tmp_path / "home")
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["equal"] and [s["replayed"] for s in told["steps"]] == [s.weights_digest for s in trained.steps]


def test_an_iteration_that_was_not_trained_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Iteration 3 of run stored-1 is not on record: no iteration has been"):
        replay(stored(tmp_path), 3)


@pytest.mark.parametrize(
    ("equal", "words"),
    [
        (True, "equal  iteration 2 of x: 2 steps give weights b again"),
        (False, "DIFFERENT  iteration 2 of x: after step 1 weights c, were b"),
    ],
)
def test_what_came_out_is_said_in_one_line(equal: bool, words: str) -> None:
    assert in_words({"run": "x", "iteration": 2, "equal": equal, "steps": STEPS}) == words
