import json
import shutil

import pytest
import torch

from tasks.counter_assertion.advantages import expected_advantages
from tasks.counter_assertion.checks import loss_oracle
from tasks.counter_assertion.evidence import StoredSample
from tasks.counter_assertion.oracle.compare import compare, kind_of
from tasks.counter_assertion.oracle.reference import model_of
from tests.cases_of import case
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PlainLoop


def _trained(rows):
    return sum(sum(r["loss_mask"]) for r in rows)


class SampleMean(PlainLoop):
    def weight(self, row, members):
        return 1 / (sum(1 for r in members if sum(r["loss_mask"])) * max(sum(row["loss_mask"]), 1))


class TokenMean(PlainLoop):
    def weight(self, row, members):
        return 1 / _trained(members)


class PromptMean(PlainLoop):
    def weight(self, row, members):
        groups = {r["group_index"] for r in members}
        return 1 / (len(groups) * _trained([r for r in members if r["group_index"] == row["group_index"]]))


class Constant(PlainLoop):
    def weight(self, row, members):
        return 1 / (len({r["rollout_id"] for r in members}) * 16)


@pytest.mark.parametrize(
    ("mean", "loop"),
    [("sample", SampleMean), ("token", TokenMean), ("prompt", PromptMean), ("constant", Constant)],
)
def test_the_oracle_knows_every_loss_mean_and_tells_them_apart(loop_of, mean, loop):
    training = {"loss_mean": mean, "constant_denominator": 16}
    evidence = evidence_of(loop_of(loop, rollout={"iterations": 1}, training=training))
    assert loss_oracle.check(evidence).status == "pass"
    other = evidence.scenario.model_copy(
        update={"training": evidence.scenario.training.model_copy(update={"loss_mean": "rollout"})}
    )
    object.__setattr__(evidence, "scenario", other)
    assert loss_oracle.check(evidence).status == "fail"


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"estimator": "gae"}, r"the values that gae takes of (rollout, sibling) [(0, 0)"),
    ],
)
def test_what_the_oracle_does_not_know_is_not_run(loop_of, training, reason):
    evidence = evidence_of(loop_of(rollout={"iterations": 1}, training=training))
    result = loss_oracle.check(evidence)
    assert result.status == "not run"
    assert reason in result.reason


def test_a_token_that_a_model_pads_with_has_a_gradient_like_any_other(tmp_path, model):
    shutil.copytree(model.path, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "pad_token_id": 7}))
    padded = model_of(tmp_path / "model", torch.float64)
    padded(torch.tensor([[3, 7, 5]])).logits.sum().backward()
    assert padded.get_input_embeddings().weight.grad[7].norm() > 0


def test_a_kind_is_a_tensor_over_all_layers():
    assert kind_of("model.layers.11.mlp.up_proj.weight") == "model.layers.*.mlp.up_proj.weight"


def test_gradients_are_compared_by_kind_and_by_tensor():
    reference = {"layers.0.a": torch.tensor([1.0, 10.0]), "layers.1.a": torch.tensor([1.0, 1.0]), "b": torch.ones(2)}
    published = {**reference, "layers.1.a": torch.tensor([1.0, 1.1])}
    error = compare(published, reference)
    assert error.by_kind == pytest.approx({"layers.*.a": 0.01, "b": 0.0}, rel=1e-5)
    assert (error.worst_tensor, error.worst_error) == ("layers.1.a", pytest.approx(0.1, rel=1e-5))


def test_a_missing_tensor_a_nan_and_another_shape_are_errors():
    one = torch.ones(2)
    assert compare({}, {"a": one}).lacking == ("a",)
    assert compare({"a": torch.tensor([float("nan"), 1.0])}, {"a": one}).largest == float("inf")
    assert compare({"a": torch.ones(3)}, {"a": one}).largest == float("inf")
    assert compare({"a": one, "lm_head.weight": one}, {"a": one}).lacking == ()
    assert compare({"a": torch.zeros(2)}, {"a": torch.zeros(2)}).largest == 0.0


def _sample(group, rollout, sibling, reward, removed=False):
    return StoredSample(
        iteration=0,
        group_index=group,
        index=rollout,
        rollout_id=rollout,
        sibling=sibling,
        prompt_id=str(group),
        epoch=0,
        attempt=1,
        prompt="",
        label="",
        response="",
        tokens=[1, 2],
        response_length=1,
        loss_mask=[1],
        status="completed",
        remove_sample=removed,
        reward=reward,
        advantage=None,
        weight_version="v0",
        metadata="{}",
    )


def _flat(values):
    return [v for value in values for v in (value if isinstance(value, list) else [value])]


@pytest.mark.parametrize("name", ["norm-1", "norm-2", "norm-4"])
def test_recomputed_advantages_of_the_known_groups(name):
    known = case(name)
    rollout, samples = 0, []
    for group, rewards in enumerate(known["input"]["groups"]):
        # In norm-2 the equal rewards are siblings of one rollout or rollouts of their own: both give 0.
        for reward in rewards:
            samples.append(_sample(group, rollout, 0, float(reward)))
            rollout += 1
    expected = expected_advantages(samples, "hooks.normalize.by_rollout", divide_by_std=known["input"]["std"])
    assert list(expected.values()) == pytest.approx(_flat(known["expect"]["by_rollout"]), abs=1e-4)


@pytest.mark.parametrize("hook", ["by_rollout", "by_sample"])
def test_recomputed_advantages_weigh_siblings_as_the_hook_says(hook):
    known = case("norm-3")
    samples = [
        _sample(0, n, k, float(r["reward"]))
        for n, r in enumerate(known["input"]["rollouts"])
        for k in range(r["siblings"])
    ]
    expected = expected_advantages(samples, f"hooks.normalize.{hook}", divide_by_std=True)
    assert list(expected.values()) == pytest.approx(known["expect"][hook], abs=1e-4)


def test_removed_samples_stay_out_of_the_statistics():
    samples = [_sample(0, 0, 0, 100.0, removed=True), _sample(0, 1, 0, 1.0)]
    assert expected_advantages(samples, "hooks.normalize.by_rollout", divide_by_std=True) == {(1, 0): 0.0}


def test_leave_one_out_and_identity():
    samples = [_sample(0, n, 0, r) for n, r in enumerate([1.0, 0.0, 0.5])]
    rloo = expected_advantages(samples, "hooks.normalize.rloo", divide_by_std=True)
    assert list(rloo.values()) == pytest.approx([0.75, -0.75, 0.0])
    same = expected_advantages(samples, "hooks.normalize.identity", divide_by_std=True)
    assert list(same.values()) == [1.0, 0.0, 0.5]
