"""Estimates of KL(policy || reference) from log-probs of the sampled tokens (Schulman, 2020)."""

from typing import Literal

from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3", "low_var"]


def kl_estimate(log_probs: Tensor, reference_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """[tokens] estimate of each token, in nats.

    k1: log ratio, unbiased, of either sign. k2: half its square. k3: ratio - 1 - log ratio of the reference to the
    policy, unbiased and never negative. low_var: k3 with the log ratio within 20 and the result within 10.

    Args:
        log_probs, reference_log_probs: [tokens].
    """
    log_ratio = reference_log_probs - log_probs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    if estimator == "k3":
        return log_ratio.exp() - 1 - log_ratio
    within = log_ratio.clamp(-20, 20)
    return (within.exp() - 1 - within).clamp(-10, 10)
