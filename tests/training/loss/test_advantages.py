import pytest
import torch

from infra.scenario.load import load
from tasks.training.loss.advantages import (
    broadcast,
    gae,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    token_advantages,
    token_rewards,
    whiten,
)
from tests.cases_of import case

SEGMENTS = torch.tensor([0, 0, 0, 1, 1])
MASK = torch.tensor([1, 0, 1, 1, 1])


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_reward_is_at_the_last_trained_token_and_the_kl_is_not_changed():
    kl = doubles(*case("loss-5")["input"]["kl"], 0.3, 0.4, 0.5)
    before = kl.clone()
    rewards = token_rewards(doubles(1, 2), kl, SEGMENTS, MASK, kl_coefficient=0.0)
    assert rewards.tolist() == [0, 0, 1, 0, 2] and torch.equal(kl, before)
    with_penalty = token_rewards(doubles(1, 2), kl, SEGMENTS, MASK, kl_coefficient=0.1)
    assert with_penalty.tolist() == pytest.approx([-0.01, 0, 0.97, -0.04, 1.95])


def test_a_sample_without_trained_tokens_gets_no_reward():
    assert not token_rewards(doubles(5), doubles(0, 0), torch.tensor([0, 0]), torch.zeros(2), kl_coefficient=0).any()


def test_discounted_returns():
    returns = reinforce_plus_plus(doubles(1, 2), doubles(0, 0, 0, 0, 0), SEGMENTS, MASK, gamma=0.5)
    assert returns.tolist() == [0.5, 0, 1, 1, 2]


def test_baseline_form_and_broadcast():
    advantages = reinforce_plus_plus_baseline(
        doubles(1, -1), doubles(1, 1, 2, 0, 1), SEGMENTS, MASK, kl_coefficient=0.1
    )
    assert advantages.tolist() == pytest.approx([0.9, 0, 0.8, -1, -1.1])
    assert broadcast(doubles(1, -1), SEGMENTS).tolist() == [1, 1, 1, -1, -1]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["estimator=grpo"], [1, 1, 1, 2, 2]),
        (["estimator=rloo"], [1, 1, 1, 2, 2]),
        (["estimator=reinforce++", "gamma=0.5"], [0.5, 0, 1, 1, 2]),
        (["estimator=reinforce++", "kl_reward_coefficient=0.1"], [0.96, 0, 0.97, 1.91, 1.95]),
        (["estimator=reinforce++-baseline", "kl_reward_coefficient=0.1"], [0.99, 0, 0.97, 1.96, 1.95]),
    ],
)
def test_advantages_of_a_scenario(overrides: list[str], expected: list[float]):
    training = load("tiny", [f"training.{o}" for o in overrides]).training
    kl = doubles(0.1, 0.2, 0.3, 0.4, 0.5)
    assert token_advantages(doubles(1, 2), SEGMENTS, MASK, training, kl=kl).tolist() == pytest.approx(expected)


def test_whitening_is_the_estimators_unless_said():
    def whitens(*overrides: str) -> bool:
        return load("tiny", [f"training.{o}" for o in overrides]).training.whitens

    assert whitens("estimator=reinforce++") and whitens("estimator=reinforce++-baseline") and not whitens()
    assert whitens("whiten_advantages=true")
    assert not whitens("estimator=reinforce++", "whiten_advantages=false")


def test_gae_against_the_definition_along_trained_tokens():
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 5, dtype=torch.float64, generator=generator)
    gamma, lambda_ = 0.9, 0.8
    advantages, returns = gae(rewards, values, SEGMENTS, MASK, gamma=gamma, lambda_=lambda_)
    expected = [0.0] * 5
    for chain in ([0, 2], [3, 4]):
        following, running = 0.0, 0.0
        for t in reversed(chain):
            running = float(rewards[t] + gamma * following - values[t]) + gamma * lambda_ * running
            expected[t], following = running, float(values[t])
    assert advantages.tolist() == pytest.approx(expected)
    trained = MASK == 1
    assert returns[trained].tolist() == pytest.approx((advantages + values)[trained].tolist())


def test_whitening_ignores_what_is_masked():
    values = doubles(1, float("nan"), 2, 3, 6)
    white = whiten(values, MASK)
    assert white[1] == 0
    kept = white[MASK == 1]
    assert kept.mean().item() == pytest.approx(0, abs=1e-12) and kept.var().item() == pytest.approx(1, abs=1e-6)
    assert whiten(values, MASK, shift_mean=False)[MASK == 1].mean().item() == pytest.approx(3)
    assert whiten(doubles(4), torch.ones(1)).tolist() == [0]


def test_whitening_does_not_scale_up_rounding():
    third = 1 / 3
    values = doubles(0.1, 0.1 + 1e-17, 0.1 * 3 * third, 0.30000000000000004 / 3, 0.1)
    assert not whiten(values, torch.ones(5)).any()
