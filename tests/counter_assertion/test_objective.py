"""The oracle's own loss and advantages, against numbers worked out by hand."""

import math

import pytest
import torch

from infra.scenario.load import load
from tasks.counter_assertion.evidence import StoredSample
from tasks.counter_assertion.oracle.objective import Tokens, objective
from tasks.counter_assertion.oracle.token_advantages import token_advantages
from tests.cases_of import case
from tests.gradients import grad_of


def training(*overrides: str):
    return load("tiny", [f"training.{o}" for o in overrides]).training


def tokens(ratio, advantages, *, reference=None, engine=None, entropy=None):
    log_probs = torch.tensor(ratio, dtype=torch.float64).log().requires_grad_()
    zero = torch.zeros(len(ratio), dtype=torch.float64)
    given = (torch.tensor(x, dtype=torch.float64) if x else zero for x in (advantages, reference, entropy))
    advantage, of_reference, of_entropy = given
    return Tokens(
        log_probs=log_probs,
        entropy=of_entropy,
        advantages=advantage,
        old=zero,
        reference=of_reference,
        engine=None if engine is None else torch.tensor(engine, dtype=torch.float64),
    )


def test_dual_clip():
    known = case("loss-4")
    given, wanted = known["input"], known["expect"]["loss"]
    clip = (f"clip_low={given['eps']}", f"clip_high={given['eps']}", f"dual_clip={given['c']}")
    loss = objective(tokens(given["ratio"], given["advantage"]), training(*clip))
    assert loss.tolist() == pytest.approx(wanted)


def test_sequence_ratio_and_the_weight_of_cispo():
    of_sequence = objective(tokens([2.0, 0.5], [1.0, 1.0]), training("estimator=gspo"))
    assert of_sequence.tolist() == pytest.approx([-1, -1])
    weighed = tokens([2.0, 0.5], [1.0, 1.0])
    objective(weighed, training("estimator=cispo")).sum().backward()
    assert grad_of(weighed.log_probs).tolist() == pytest.approx([-1.2, -0.8])


@pytest.mark.parametrize(("kind", "weights"), [("truncate", [2, 1.5, 0.1]), ("mask", [0, 1.5, 0])])
def test_importance_weights(kind, weights):
    engine = [-math.log(r) for r in (4, 1.5, 0.1)]
    loss = objective(tokens([1.0] * 3, [1.0] * 3, engine=engine), training(f"importance_correction={kind}"))
    assert loss.tolist() == pytest.approx([-w for w in weights])


@pytest.mark.parametrize(
    ("estimator", "kl"), [("k1", -0.5), ("k2", 0.125), ("k3", math.exp(0.5) - 1.5), ("low_var", math.exp(0.5) - 1.5)]
)
def test_kl_and_entropy(estimator, kl):
    settings = training("kl_coefficient=0.1", f"kl_estimator={estimator}", "entropy_coefficient=0.01")
    loss = objective(tokens([1.0], [0.0], reference=[0.5], entropy=[3.0]), settings)
    assert loss.tolist() == pytest.approx([0.1 * kl - 0.03])


def sample(rollout, mask):
    texts = dict.fromkeys(("prompt_id", "prompt", "label", "response", "status", "weight_version", "metadata"), "")
    numbers = dict.fromkeys(("iteration", "group_index", "index", "sibling", "epoch", "attempt"), 0)
    values = {"tokens": [1, *mask], "response_length": len(mask), "loss_mask": mask, "remove_sample": False}
    return StoredSample(**texts, **numbers, **values, rollout_id=rollout, reward=0.0, advantage=None)


def test_rewards_are_discounted_towards_the_first_trained_token_and_whitened_over_all_samples():
    samples = [sample(0, [1, 0, 1]), sample(1, [1])]
    given = {(0, 0): 1.0, (1, 0): -2.0}
    plain = training("estimator=reinforce++", "gamma=0.5", "whiten_advantages=false")
    assert token_advantages(samples, given, plain) == {(0, 0): [0.5, 1.0], (1, 0): [-2.0]}
    white = token_advantages(samples, given, training("estimator=reinforce++", "gamma=0.5"))
    values = [v for of_sample in white.values() for v in of_sample]
    assert sum(values) == pytest.approx(0, abs=1e-12)
    assert sum(v * v for v in values) / 2 == pytest.approx(1, rel=1e-6)


def test_equal_rewards_are_whitened_to_nothing():
    samples = [sample(k, [1] * 7) for k in range(3)]
    same = token_advantages(samples, {s.key: 0.1 for s in samples}, training("estimator=reinforce++"))
    assert {v for of_sample in same.values() for v in of_sample} == {0.0}
