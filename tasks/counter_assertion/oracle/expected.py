"""What one step has to train on, rebuilt from raw rewards and masks: which samples, their advantages and weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.scenario.model import Scenario
from tasks.counter_assertion.advantages import expected_advantages
from tasks.counter_assertion.evidence import StoredSample, trainable


@dataclass(frozen=True, kw_only=True)
class OracleSample:
    """One sample of the step; the step's loss is the sum of `weight * sum_t mask_t * loss_t` over its samples."""

    rollout_id: int
    sibling: int
    tokens: list[int]
    response_length: int
    mask: list[int]
    advantage: float
    weight: float

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


def step_batch(raw: Sequence[StoredSample], rollout_ids: Sequence[int], scenario: Scenario) -> OracleBatch:
    """The step that trains these rollouts, with all their siblings, whatever the plan says of them.

    Args:
        raw: all samples of the iteration with raw rewards: groups have to be whole.
        rollout_ids: the rollouts of the step.
    """
    norm = scenario.normalization
    advantages = expected_advantages(raw, norm.reward_post_process, divide_by_std=norm.divide_by_std)
    wanted = set(rollout_ids)
    members = [s for s in trainable(raw) if s.rollout_id in wanted]
    counted = {s.rollout_id for s in members if s.trained_tokens}
    weigh = _weights(members, len(counted), scenario)
    samples = tuple(
        OracleSample(
            rollout_id=s.rollout_id,
            sibling=s.sibling,
            tokens=s.tokens,
            response_length=s.response_length,
            mask=s.loss_mask,
            advantage=advantages[s.key],
            weight=weight,
        )
        for s, weight in zip(members, weigh, strict=True)
    )
    return OracleBatch(samples=samples, rollouts=len(counted))


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
