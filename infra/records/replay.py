"""What was computed a second time: the training of an iteration, and the gradient of one step in other shapes."""

from dataclasses import asdict, dataclass
from typing import Any

from infra.store import ObjectRef


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One iteration trained again by other processes, from its stored rollouts, plan and trainer state.

    `step_digests` are the weights digests after each step, as `StepResult.weights_digest`.
    """

    iteration: int
    rollouts: ObjectRef
    plan: ObjectRef
    step_digests: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Replay":
        refs = {name: ObjectRef.from_dict(data[name]) for name in ("rollouts", "plan")}
        return cls(**{**data, **refs, "step_digests": tuple(data["step_digests"])})


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The unclipped gradient of a step in another shape, and the gradient that it has to equal.

    `name`: `permuted`, `micro-batches`, `data-parallel` (against the run's own gradient) or `copies` (against that of
    the same rollouts with one sibling each). `change` says in words what is different.
    """

    name: str
    change: str
    gradient: ObjectRef
    against: ObjectRef


@dataclass(frozen=True, kw_only=True)
class NotCompared:
    """A variant that could not be computed, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Invariance:
    """One step's gradient in other shapes; `dtype` is the type that the gradients were computed in."""

    iteration: int
    step: int
    dtype: str
    variants: tuple[Variant, ...]
    not_compared: tuple[NotCompared, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Invariance":
        def variant(v: dict[str, Any]) -> Variant:
            refs = {name: ObjectRef.from_dict(v[name]) for name in ("gradient", "against")}
            return Variant(**{**v, **refs})

        variants = tuple(variant(v) for v in data["variants"])
        return cls(
            **{**data, "variants": variants, "not_compared": tuple(NotCompared(**n) for n in data["not_compared"])}
        )
