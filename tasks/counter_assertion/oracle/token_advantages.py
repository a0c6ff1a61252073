"""Advantages of single tokens in the run's first iteration, in plain loops over float64, apart from the trainer's.

There the policy is the reference, so a KL in the reward is 0 at every token, whatever its coefficient and estimate.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence

from infra.scenario.training import Training
from tasks.counter_assertion.evidence import Key, StoredSample

WHITENING_EPSILON = 1e-8
ROUNDING = 1e-6  # values that deviate by less than this share of their root mean square are equal but for rounding


def token_advantages(
    samples: Sequence[StoredSample], advantages: Mapping[Key, float], training: Training
) -> dict[Key, list[float]]:
    """[trained tokens] of each sample.

    Args:
        samples: all that the iteration trains, in all its steps: whitening is over all of them.
        advantages: of each sample, as the reward normalisation has to leave them.
    """
    tokens = {s.key: _of_sample(s, advantages[s.key], training) for s in samples}
    return _whitened(tokens) if _whitens(training) else tokens


def _whitens(training: Training) -> bool:
    """REINFORCE++ and its variant with a baseline do (section 3 of their paper), unless the scenario says otherwise."""
    if training.whiten_advantages is not None:
        return training.whiten_advantages
    return training.estimator in ("reinforce++", "reinforce++-baseline")


def _of_sample(sample: StoredSample, advantage: float, training: Training) -> list[float]:
    """REINFORCE++ (arXiv:2501.03262): the reward is at the last trained token, discounted towards the first."""
    trained = sample.trained_tokens
    if training.estimator == "gae" and trained:
        return _over_values(advantage, trained_values(sample), training)
    if training.estimator == "reinforce++":
        return [advantage * training.gamma ** (trained - 1 - t) for t in range(trained)]
    return [advantage] * trained


def trained_values(sample: StoredSample) -> list[float]:
    """[trained tokens] a critic's values, as the hook has kept them; empty where it has not, or not one a token."""
    values = json.loads(sample.metadata).get("values") or []
    if len(values) != sample.response_length:
        return []
    return [float(v) for v, m in zip(values, sample.loss_mask, strict=True) if m]


def _over_values(reward: float, values: Sequence[float], training: Training) -> list[float]:
    """Generalised advantage estimation, by its definition as a sum of discounted errors (arXiv:1506.02438 eq. 16)."""
    ahead = [*values[1:], 0.0]
    errors = [training.gamma * after - value for value, after in zip(values, ahead, strict=True)]
    errors[-1] += reward
    fade = training.gamma * training.gae_lambda
    return [math.fsum(fade**k * error for k, error in enumerate(errors[t:])) for t in range(len(errors))]


def _whitened(tokens: Mapping[Key, list[float]]) -> dict[Key, list[float]]:
    values = [v for of_sample in tokens.values() for v in of_sample]
    mean = statistics.fmean(values) if values else 0.0
    square = math.fsum((v - mean) ** 2 for v in values)
    if square <= ROUNDING**2 * math.fsum(v**2 for v in values):
        return {key: [0.0] * len(of_sample) for key, of_sample in tokens.items()}
    scale = math.sqrt(square / (len(values) - 1) + WHITENING_EPSILON)
    return {key: [(v - mean) / scale for v in of_sample] for key, of_sample in tokens.items()}
