"""What trainer ranks hand to the driver: small frozen records, no tensors of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from infra.records.plan import Step
from infra.records.training import StepResult
from infra.store import ObjectRef

PUSH_SECONDS = 120.0  # that one engine may take for its weights


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a GPU that nobody uses, and all that it has."""

    free: int
    total: int


@dataclass(frozen=True)
class RankPlace:
    """Where a rank is: its node's address, its process id, its GPU as `CUDA_VISIBLE_DEVICES` names it ("" on a CPU)."""

    host: str
    process: int
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """What was sent to every engine: number of tensors, bytes to each, seconds for all, digest of the weights sent."""

    tensors: int
    bytes: int
    seconds: float
    digest: str


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One step on one rank. The sums are over the rank's micro-batches, zero on ranks that do not lead their share."""

    step: int
    terms: dict[int, float] = field(default_factory=dict)
    tokens: int = 0
    clipped: int = 0
    old_minus_new: float = 0.0
    entropy: float = 0.0
    ratio_error: float = 0.0
    gradient_norm: float
    learning_rate: float
    seconds: float
    weights_digest: str
    gradient: ObjectRef | None = None
    weights_before: ObjectRef | None = None


@dataclass(frozen=True, kw_only=True)
class SampleLogProbs:
    """[response_length] float32 log-probs of one sample before the iteration's first step."""

    rollout_id: int
    sibling: int
    log_probs: np.ndarray


@dataclass(frozen=True, kw_only=True)
class StateShard:
    """One rank's published trainer state; `parts` says which elements of which parameter it holds."""

    rank: int
    ref: ObjectRef
    parts: dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RankIteration:
    """All that one rank did in one iteration."""

    rank: int
    steps: tuple[RankStep, ...]
    log_probs: tuple[SampleLogProbs, ...]
    ledger: ObjectRef
    rollouts_seen: int
    state: StateShard
    log_probs_seconds: float = 0.0
    state_seconds: float = 0.0


def combine(iteration: int, step: Step, ranks: Sequence[RankStep]) -> StepResult:
    """The step's result over all ranks. Sums go in rank order, so that equal runs give equal figures.

    A step of which everything is masked or removed has loss 0 and means of 0.
    """
    terms = dict.fromkeys(step.rollout_ids, 0.0)
    for rank in ranks:
        for rollout_id, term in rank.terms.items():
            terms[rollout_id] = terms.get(rollout_id, 0.0) + term
    tokens = sum(r.tokens for r in ranks)
    trained = max(tokens, 1)
    return StepResult(
        iteration=iteration,
        step=step.index,
        loss=sum(terms.values()) / max(step.rollouts_in_mean, 1),
        rollout_terms=terms,
        gradient_norm=ranks[0].gradient_norm,
        learning_rate=ranks[0].learning_rate,
        clip_fraction=sum(r.clipped for r in ranks) / trained,
        max_ratio_error=max(r.ratio_error for r in ranks),
        approx_kl=sum(r.old_minus_new for r in ranks) / trained,
        entropy=sum(r.entropy for r in ranks) / trained,
        tokens=tokens,
        seconds=max(r.seconds for r in ranks),
        weights_digest=ranks[0].weights_digest,
        gradient=ranks[0].gradient,
        weights_before=ranks[0].weights_before,
    )
