"""The one place that computes the denominators of the loss.

The loss of a step is `sum_s weight_s * sum_t mask_st * loss_st` over its samples s and response tokens t. Weights are
computed over the whole step, before any split into micro-batches or ranks, so the loss is the same under every split.

| mean | weight of a sample |
|---|---|
| rollout | 1 / (rollouts in the mean * trained tokens of its rollout, all siblings together) |
| sample | 1 / (samples with trained tokens * its trained tokens) |
| token | 1 / trained tokens of the step |
| prompt | 1 / (prompt groups with trained tokens * trained tokens of its group in this step) |
| constant | 1 / (rollouts in the mean * constant), Dr. GRPO (arXiv:2503.20783) |
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

LossMean = Literal["rollout", "sample", "token", "prompt", "constant"]


def sample_weights(
    mode: LossMean, trained_tokens: ArrayLike, rollout: ArrayLike, group: ArrayLike, *, constant: int = 1
) -> tuple[NDArray[np.float64], int]:
    """The weight of every sample of one step, and the number of rollouts in its mean.

    Rollouts without a trained token (fully masked, removed) leave the mean. A step without any has loss 0, not NaN.

    Args:
        trained_tokens: [samples] sum of each sample's loss mask.
        rollout: [samples] rollout id.
        group: [samples] prompt group.
        constant: tokens that a rollout's sum is divided by in mode `constant`.
    Returns:
        ([samples] float64, rollouts with at least one trained token)

    Example: one rollout whose siblings train 3, 3 and 3 tokens -> 1/9 each, 1 rollout
    """
    tokens = np.asarray(trained_tokens, np.int64)
    rollout_tokens, rollouts = _terms(tokens, rollout)
    if mode == "rollout":
        return 1 / (max(rollouts, 1) * rollout_tokens), rollouts
    if mode == "sample":
        per_sample, samples = _terms(tokens, np.arange(len(tokens)))
        return 1 / (max(samples, 1) * per_sample), rollouts
    if mode == "prompt":
        group_tokens, groups = _terms(tokens, group)
        return 1 / (max(groups, 1) * group_tokens), rollouts
    denominator = max(int(tokens.sum()), 1) if mode == "token" else max(rollouts, 1) * constant
    return np.full(len(tokens), 1 / denominator), rollouts


def _terms(tokens: NDArray[np.int64], key: ArrayLike) -> tuple[NDArray[np.int64], int]:
    """[samples] trained tokens of all samples of the same key, at least 1, and how many keys have any."""
    _, code = np.unique(np.asarray(key, np.int64), return_inverse=True)
    total = np.bincount(code, tokens).astype(np.int64)
    return np.maximum(total, 1)[code], int((total > 0).sum())
