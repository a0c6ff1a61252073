"""`fanline diff` on stored runs of an independent loop."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infra.run import Run
from infra.upkeep.diff import RunDifferences, differences, flattened
from tests.counter_assertion.plain_loop import PlainLoop, scenario, tiny_qwen2
from tests.counter_assertion.test_checks import DenominatorPerSample

ROOT = Path(__file__).parents[3]
torch.set_num_threads(1)  # two threads of a tiny model spend their time waiting for each other


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    model = tiny_qwen2(folder / "model")
    kinds = {"right": PlainLoop, "again": PlainLoop, "wrong": DenominatorPerSample}
    seeds = {"other-seed": 4}
    made = {}
    for name in (*kinds, *seeds):
        of_it = scenario(rollout={"iterations": 1}, seed=seeds.get(name, 3))
        run = Run(run_id=name, scenario=of_it, store_uri=str(folder / "store"), spool=folder / "spool" / name)
        kinds.get(name, PlainLoop)(run, model).go()
        made[name] = run
    return made


def between(runs: dict[str, Run], left: str, right: str) -> RunDifferences:
    return differences(runs[left], runs[right])


def test_two_runs_of_the_same_do_not_differ(runs: dict[str, Run]):
    assert between(runs, "right", "again").same


def test_the_first_record_that_differs_is_the_plan_of_a_wrong_denominator(runs: dict[str, Run]):
    found = between(runs, "right", "wrong")
    assert not any(found.inputs.values())
    assert found.record and found.record.what.startswith("iteration 0, plan, steps[0].ranks[0]")
    assert found.record.what.endswith(".weight")
    assert found.record.left != found.record.right


def test_another_seed_is_said_as_a_setting_and_seen_in_the_first_sample(runs: dict[str, Run]):
    found = between(runs, "right", "other-seed")
    assert [(d.what, d.left, d.right) for d in found.inputs["settings"]] == [("seed", "3", "4")]
    assert found.record and found.record.what.startswith("iteration 0, rollout")


def test_the_command_prints_it_and_exits_like_diff(runs: dict[str, Run]):
    def command(left: str, right: str) -> tuple[int, dict]:
        arguments = ["diff", left, right, "--store", runs["right"].store_uri, "--json"]
        ended = subprocess.run(
            [sys.executable, "-m", "infra.cli", *arguments],
            cwd=ROOT,
            env={**os.environ},
            capture_output=True,
            text=True,
        )
        return ended.returncode, json.loads(ended.stdout)

    assert command("right", "again") == (
        0,
        {**between(runs, "right", "again").to_dict(), "runs": ["right", "again"]},
    )
    code, said = command("right", "wrong")
    assert code == 1 and said["first_record"]["what"].startswith("iteration 0, plan, steps[0]")


def test_a_document_is_flattened_to_dotted_paths():
    assert flattened({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
