"""Correction for an engine that samples from other probabilities than the trainer computes (Yao et al., 2025)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from infra.scenario.training import Training


@dataclass(frozen=True, kw_only=True)
class ImportanceCorrection:
    """How a token's loss is weighted by trainer over engine probability.

    Args:
        kind: `truncate` (TIS) weights by the ratio, at most `high`; `mask` weights by the ratio where it is within
            [`low`, `high`], and leaves the token's loss out elsewhere. Denominators do not change.
    """

    kind: Literal["truncate", "mask"]
    high: float = 2.0
    low: float = 0.5

    @classmethod
    def of(cls, training: Training) -> "ImportanceCorrection | None":
        """The scenario's correction; None where it has none."""
        if training.importance_correction == "none":
            return None
        return cls(kind=training.importance_correction, high=training.importance_high, low=training.importance_low)


def importance_weights(old_log_probs: Tensor, engine_log_probs: Tensor, correction: ImportanceCorrection) -> Tensor:
    """[tokens] weight of each token's loss, without gradient.

    Args:
        old_log_probs: [tokens] the trainer's, of the weights that generated.
        engine_log_probs: [tokens] as the engine sampled them.
    """
    ratio = (old_log_probs - engine_log_probs).detach().exp()
    if correction.kind == "truncate":
        return ratio.clamp(max=correction.high)
    return torch.where((ratio >= correction.low) & (ratio <= correction.high), ratio, 0)
