"""The step plan: which sample is in which step, rank and micro-batch, and with which weight it enters the loss."""

from dataclasses import asdict, dataclass, field
from typing import Any

PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PlannedSample:
    """One sample in a micro-batch.

    The step's loss is the sum over its samples of `weight * sum_t(mask * token loss)`: `weight` holds every
    denominator. `row` counts from 0 in the table of reward_normalization.json. `opens_rollout` marks the one sample
    that counts its rollout in the step's mean. A dummy repeats a row of the table with weight 0, so that every rank
    runs the same number of micro-batches.
    """

    row: int
    rollout_id: int
    sibling: int
    weight: float
    opens_rollout: bool = False
    dummy: bool = False


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one data-parallel rank runs forward and backward at once; `tokens` with prompts, `cost` in any unit."""

    samples: tuple[PlannedSample, ...]
    tokens: int
    cost: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step: exactly `global_batch_size` rollouts, `rollouts_in_mean` of them with unmasked tokens.

    `figures` says how the schedule came out (padding share, max over mean cost of a rank, rollouts that are split).
    """

    index: int
    rollout_ids: tuple[int, ...]
    rollouts_in_mean: int
    ranks: tuple[tuple[MicroBatch, ...], ...]
    figures: dict[str, float] = field(default_factory=dict)

    def samples(self) -> list[PlannedSample]:
        return [s for rank in self.ranks for batch in rank for s in batch.samples if not s.dummy]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A rollout that is not trained, and why.

    `aborted` and `trailing` rollouts (`carried` where the next iteration takes them) are in no step. A rollout that is
    `fully masked` or `removed` keeps its place among the step's rollouts and leaves the mean; none of its samples runs.
    """

    rollout_id: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """All steps of one iteration. `engine_log_probs`: sha256 of the engine's log-probs, where the loss uses them."""

    iteration: int
    global_batch_size: int
    data_parallel: int
    token_cap: int | None
    loss_mean: str
    steps: tuple[Step, ...]
    left_out: tuple[LeftOut, ...] = ()
    engine_log_probs: str | None = None
    version: int = PLAN_VERSION

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TrainingPlan":
        def batch(b: dict[str, Any]) -> MicroBatch:
            return MicroBatch(**{**b, "samples": tuple(PlannedSample(**s) for s in b["samples"])})

        def step(s: dict[str, Any]) -> Step:
            ranks = tuple(tuple(batch(b) for b in rank) for rank in s["ranks"])
            return Step(**{**s, "rollout_ids": tuple(s["rollout_ids"]), "ranks": ranks})

        steps = tuple(step(s) for s in data["steps"])
        return cls(**{**data, "steps": steps, "left_out": tuple(LeftOut(**o) for o in data["left_out"])})
