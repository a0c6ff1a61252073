"""What one step has to train on, rebuilt from raw rewards and masks: which samples, their advantages and weights."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from infra.scenario.model import Scenario
from tasks.counter_assertion.advantages import expected_advantages
from tasks.counter_assertion.evidence import LogProbs, StoredSample, trainable
from tasks.counter_assertion.oracle.token_advantages import token_advantages


@dataclass(frozen=True, kw_only=True)
class OracleSample:
    """One sample of the step; the step's loss is the sum of `weight * sum_t mask_t * loss_t` over its samples.

    Args:
        advantages: [trained tokens].
        engine: [trained tokens] log-probs of the engine, where the scenario corrects for them.
    """

    rollout_id: int
    sibling: int
    tokens: list[int]
    response_length: int
    mask: list[int]
    advantages: list[float]
    weight: float
    engine: list[float] | None = None

    @property
    def trained_positions(self) -> list[int]:
        """Positions in `tokens` of the response tokens that the mask keeps."""
        first = len(self.tokens) - self.response_length
        return [first + t for t, m in enumerate(self.mask) if m]


@dataclass(frozen=True, kw_only=True)
class OracleBatch:
    """The samples of one step; `rollouts` counts those with a trained token (the mean's denominator G')."""

    samples: tuple[OracleSample, ...]
    rollouts: int


def step_batch(
    raw: Sequence[StoredSample],
    rollout_ids: Sequence[int],
    scenario: Scenario,
    *,
    of_iteration: Collection[int] | None = None,
    engine: LogProbs | None = None,
) -> OracleBatch:
    """The step that trains these rollouts, with all their siblings, whatever the plan says of them.

    Args:
        raw: all samples of the iteration with raw rewards: groups have to be whole.
        rollout_ids: the rollouts of the step.
        of_iteration: the rollouts of all steps of the iteration: whitening is over all of them. By default the step's.
        engine: the engine's log-probs, where the scenario corrects for them.
    """
    norm = scenario.normalization
    advantages = expected_advantages(raw, norm.reward_post_process, divide_by_std=norm.divide_by_std)
    wanted = set(rollout_ids)
    trained = [s for s in trainable(raw) if s.rollout_id in wanted.union(of_iteration or ())]
    per_token = token_advantages(trained, advantages, scenario.training)
    members = [s for s in trained if s.rollout_id in wanted]
    counted = {s.rollout_id for s in members if s.trained_tokens}
    weigh = _weights(members, len(counted), scenario)
    samples = tuple(
        OracleSample(
            rollout_id=s.rollout_id,
            sibling=s.sibling,
            tokens=s.tokens,
            response_length=s.response_length,
            mask=s.loss_mask,
            advantages=per_token[s.key],
            weight=weight,
            engine=_trained(engine[s.key], s) if engine is not None and s.trained_tokens else None,
        )
        for s, weight in zip(members, weigh, strict=True)
    )
    return OracleBatch(samples=samples, rollouts=len(counted))


def _trained(log_probs: np.ndarray, sample: StoredSample) -> list[float]:
    return [float(p) for p, m in zip(log_probs, sample.loss_mask, strict=True) if m]


def _weights(members: list[StoredSample], rollouts: int, scenario: Scenario) -> list[float]:
    """Weight of every sample: one over what its mean divides by (default: 1/G' * 1/D_k, D_k over all siblings)."""
    mode, constant = scenario.training.loss_mean, scenario.training.constant_denominator
    if mode in ("token", "constant"):
        total = sum(s.trained_tokens for s in members) if mode == "token" else rollouts * constant
        return [1.0 / max(total, 1)] * len(members)
    unit_of = {
        "rollout": lambda s: s.rollout_id,
        "sample": lambda s: s.key,
        "prompt": lambda s: s.group_index,
    }[mode]
    tokens: dict[object, int] = {}
    for s in members:
        tokens[unit_of(s)] = tokens.get(unit_of(s), 0) + s.trained_tokens
    units = sum(1 for count in tokens.values() if count)
    return [1.0 / (max(units, 1) * max(tokens[unit_of(s)], 1)) for s in members]
