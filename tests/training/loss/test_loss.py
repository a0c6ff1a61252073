import pytest
import torch

from infra.scenario.load import load
from tasks.training.loss.importance import ImportanceCorrection, importance_weights
from tasks.training.loss.loss import token_loss
from tests.cases_of import case

NAN, INF = float("nan"), float("inf")


def training(*overrides: str):
    return load("tiny", [f"training.{o}" for o in overrides]).training


def batch(**changed):
    tokens = {
        "log_probs": [-1.0, -2.0, -0.5, -3.0],
        "old_log_probs": [-1.0, -2.1, -1.5, -2.0],
        "advantages": [1.0, 1.0, -2.0, -2.0],
    }
    values = {name: torch.tensor(v, dtype=torch.float64) for name, v in tokens.items()}
    segments, mask = torch.tensor([0, 0, 1, 1]), torch.ones(4)
    return {**values, "segments": segments, "mask": mask, **changed}


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "rloo", "reinforce++"])
def test_ratio_one_gives_minus_the_advantage_as_gradient(estimator):
    values = batch()
    values["log_probs"] = values["log_probs"].requires_grad_()
    values["old_log_probs"] = values["log_probs"].detach()
    loss, metrics = token_loss(**values, training=training(f"estimator={estimator}"))
    loss.sum().backward()
    assert values["log_probs"].grad.tolist() == pytest.approx((-values["advantages"]).tolist())
    assert not metrics["clipped"].any() and not metrics["ratio_error"].any()


@pytest.mark.parametrize("garbage", [NAN, INF, -INF])
def test_what_is_masked_has_no_loss_no_metric_and_no_gradient(garbage):
    values = batch(mask=torch.tensor([1, 0, 1, 0]))
    for name in ("log_probs", "old_log_probs", "advantages"):
        values[name][[1, 3]] = garbage
    values["log_probs"].requires_grad_()
    reference, entropy = values["old_log_probs"].clone(), torch.full((4,), garbage)
    loss, metrics = token_loss(
        **values,
        training=training("kl_coefficient=0.1", "entropy_coefficient=0.01"),
        reference_log_probs=reference,
        entropy=entropy,
    )
    assert loss[[1, 3]].tolist() == [0, 0]
    assert all(m[[1, 3]].tolist() == [0, 0] for m in metrics.values())
    loss[[0, 1]].sum().backward()
    assert values["log_probs"].grad.isfinite().all() and not values["log_probs"].grad[[1, 3]].any()


def test_kl_is_reported_at_coefficient_zero_too():
    known = case("loss-5")
    kl = torch.tensor(known["input"]["kl"], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)
    values = {"log_probs": kl, "old_log_probs": kl, "advantages": zero, "segments": zero.long(), "mask": zero + 1}
    settings = training("kl_estimator=k1", f"kl_coefficient={known['input']['coef']}")
    loss, metrics = token_loss(**values, training=settings, reference_log_probs=zero)
    assert metrics["kl"].tolist() == known["expect"]["logged"] and not loss.any()


def test_kl_and_entropy_enter_with_their_coefficients():
    values, entropy = batch(), torch.tensor([0.5, 1, 1.5, 2], dtype=torch.float64)
    plain, _ = token_loss(**values, training=training())
    loss, _ = token_loss(
        **values,
        training=training("kl_coefficient=0.5", "kl_estimator=k2", "entropy_coefficient=0.1"),
        reference_log_probs=values["old_log_probs"],
        entropy=entropy,
    )
    kl = (values["log_probs"] - values["old_log_probs"]).square() / 2
    assert (loss - plain).tolist() == pytest.approx((0.5 * kl - 0.1 * entropy).tolist())


def test_importance_weights_are_truncated_or_masked():
    old, engine = torch.tensor([4.0, 1.5, 0.1]).log(), torch.zeros(3)
    truncated = importance_weights(old, engine, ImportanceCorrection(kind="truncate", high=2))
    assert truncated.tolist() == pytest.approx([2, 1.5, 0.1])
    masked = importance_weights(old, engine, ImportanceCorrection(kind="mask", low=0.5, high=2))
    assert masked.tolist() == pytest.approx([0, 1.5, 0])


def test_importance_correction_weighs_the_policy_term_only():
    values = batch()
    engine = values["old_log_probs"] - 0.3
    plain, _ = token_loss(**values, training=training())
    corrected = training("importance_correction=truncate", "importance_high=1.2")
    loss, metrics = token_loss(**values, training=corrected, engine_log_probs=engine)
    assert loss.tolist() == pytest.approx((1.2 * plain).tolist())
    assert metrics["importance_weight"].tolist() == [1.2] * 4
