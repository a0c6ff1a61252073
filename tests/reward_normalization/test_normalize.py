import numpy as np
import pytest
import torch

from hooks import normalize
from infra.errors import ContractViolation, HookFailed
from infra.records.rollouts import rollouts_table
from infra.scenario.args import ScenarioArgs
from infra.scenario.load import load
from tasks.reward_normalization.normalize import normalised_advantages
from tests.reward_normalization.rows import row

TABLE = rollouts_table([row(0, 0, reward=1.0), row(1, 0, 0), row(1, 0, 1), row(2, 1, reward=5.0)])
ARGS = ScenarioArgs(load("tiny", ["normalization.divide_by_std=false"]), "model")


def test_the_scenario_decides_on_the_std():
    advantages = normalised_advantages(TABLE, normalize.by_rollout, "hooks.normalize.by_rollout", ARGS)
    assert advantages.tolist() == [0.5, -0.5, -0.5, 0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0.0] * 4, "returned list"),
        (([0.0] * 4, [0.0] * 3), "3 normalised rewards for 4 samples"),
        (([0.0], [0.0] * 4), "1 raw rewards for 4 samples"),
        (([0.0] * 4, [0.0, float("nan"), 1.0, None]), "rollouts 1, 2"),
        ((None, [0.0] * 4), r"a NoneType \(None\) as raw rewards.*a list of numbers"),
        (([0.0] * 4, None), r"a NoneType \(None\) as normalised rewards"),
        (([0.0] * 4, ["0.5", 0.0, 0.0, 0.0]), "a list .* as normalised rewards"),
        (([0.0] * 4, "0000"), "a str .'0000'. as normalised rewards"),
        (([0.0] * 4, dict.fromkeys(range(4), 0.0)), "a dict .* as normalised rewards"),
        (([0.0] * 4, [[0.0]] * 4), "a list .* as normalised rewards"),
        (([0.0] * 4, [[0.0], 0.0, 0.0, 0.0]), "a list .* as normalised rewards"),
        (([0.0] * 4, np.float64(1)), "a float64 .* as normalised rewards"),
    ],
)
def test_answers_of_another_shape_are_refused_by_name(answer, words):
    with pytest.raises(ContractViolation, match=words) as refusal:
        normalised_advantages(TABLE, lambda args, samples: answer, "hooks.mine.normalise", ARGS)
    assert "hooks.mine.normalise" in str(refusal.value)


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_arrays_of_numbers_are_taken_as_they_are(kind):
    answer = kind([0.0] * 4), kind([0.5, -0.5, 0.0, 1.0])
    assert normalised_advantages(TABLE, lambda args, samples: answer, "hooks.mine", ARGS).tolist() == [0.5, -0.5, 0, 1]


def test_a_hook_that_reorders_is_refused():
    def reordering(args, samples):
        samples.reverse()
        return [0.0] * 4, [0.0] * 4

    with pytest.raises(ContractViolation, match="reordered"):
        normalised_advantages(TABLE, reordering, "hooks.mine.normalise", ARGS)


def test_a_refusal_inside_the_hook_keeps_its_ids():
    table = rollouts_table([row(0, 0, 0, 1.0), row(0, 0, 1, 0.0)])
    with pytest.raises(HookFailed, match="different rewards in rollouts 0") as refusal:
        normalised_advantages(table, normalize.by_rollout, "hooks.normalize.by_rollout", ARGS)
    assert refusal.value.ids == ("hooks.normalize.by_rollout", 0)
