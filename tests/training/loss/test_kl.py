import math

import pytest
import torch

from tasks.training.loss.kl import kl_estimate


def test_the_four_forms_by_hand():
    new, reference = torch.tensor([-1.0, -2.0], dtype=torch.float64), torch.tensor([-1.5, -1.0], dtype=torch.float64)
    assert kl_estimate(new, reference, "k1").tolist() == [0.5, -1.0]
    assert kl_estimate(new, reference, "k2").tolist() == [0.125, 0.5]
    k3 = [math.exp(-0.5) - 1 + 0.5, math.exp(1) - 1 - 1]
    assert kl_estimate(new, reference, "k3").tolist() == pytest.approx(k3)
    assert kl_estimate(new, reference, "low_var").tolist() == pytest.approx(k3)


def test_low_var_is_bounded_where_k3_is_not():
    new, reference = torch.tensor([-200.0, 0.0]), torch.tensor([0.0, -200.0])
    assert kl_estimate(new, reference, "low_var").tolist() == [10, 10]
    assert kl_estimate(new, reference, "k3")[0] == math.inf


def test_k1_and_k3_are_unbiased_in_expectation():
    policy, reference = (
        torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    for estimator in ("k1", "k3"):
        assert (policy.exp() * kl_estimate(policy, reference, estimator)).sum() == pytest.approx(exact)
