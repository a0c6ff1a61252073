"""What the checks look at: records that a run left in the store, in plain frozen values.

Whoever writes these records can be checked: nothing here knows which engine or trainer made them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from infra.hook_loading import HOOK_PACKAGES
from infra.records.plan import TrainingPlan
from infra.records.replay import Invariance, Replay
from infra.records.rollouts import RolloutsRef
from infra.records.sources import ModelRef
from infra.records.training import SyncResult, TrainedIteration
from infra.scenario.model import Scenario
from infra.store import ArtifactStore

Key = tuple[int, int]  # (rollout_id, sibling)
LogProbs = Mapping[Key, np.ndarray]
Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredSample:
    """One row of the rollouts table (schema ROLLOUTS_SCHEMA)."""

    iteration: int
    group_index: int
    index: int
    rollout_id: int
    sibling: int
    prompt_id: str
    epoch: int
    attempt: int
    prompt: str
    label: str | None
    response: str
    tokens: list[int]
    response_length: int
    loss_mask: list[int]
    status: str
    remove_sample: bool
    reward: float | None
    advantage: float | None
    weight_version: str
    metadata: str

    @property
    def key(self) -> Key:
        return self.rollout_id, self.sibling

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)


def trainable(samples: Iterable[StoredSample]) -> list[StoredSample]:
    """The samples that are trained: not removed, and of a rollout without an aborted sibling."""
    samples = list(samples)
    aborted = {s.rollout_id for s in samples if s.status == "aborted"}
    return [s for s in samples if not s.remove_sample and s.rollout_id not in aborted]


@dataclass(frozen=True, kw_only=True)
class SyncLogProbs:
    """One sequence that a weight sync compared (schema SYNC_LOG_PROBS_SCHEMA)."""

    rollout_id: int
    sibling: int
    engine: list[float]
    trainer: list[float]
    before: list[float]
    after: list[float]

    @property
    def key(self) -> Key:
        return self.rollout_id, self.sibling


@dataclass(frozen=True, kw_only=True)
class LedgerFault:
    """A ledger line that can not be this run's: of another run, written twice, or out of order."""

    segment: str
    line: int
    what: str


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A part that could not be read. `damaged`: it was published and is gone or changed: a fault of the store."""

    part: str
    iteration: int | None
    reason: str
    damaged: bool = False


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The error that ended the run before its last stage.

    Args:
        contract: a hook returned what the contract refuses.
        regression: the error is itself the stack's, such as a loss that is not finite, and no service's.
        inconclusive: nothing failed, and nothing could be shown, such as too few rollouts for a step.
    """

    kind: str
    message: str
    ids: tuple[Any, ...]
    contract: bool
    regression: bool = False
    inconclusive: bool = False


@dataclass(frozen=True, kw_only=True)
class IterationEvidence:
    """The parts of one iteration; asking for a part that is not there is a KeyError (checks name their NEEDS)."""

    iteration: int
    parts: Mapping[str, Any]

    @property
    def rollouts(self) -> tuple[StoredSample, ...]:
        """Samples as the rollout stage left them, with raw rewards."""
        return self.parts["rollouts"]

    @property
    def rollouts_ref(self) -> RolloutsRef:
        return self.parts["rollouts_ref"]

    @property
    def normalised(self) -> tuple[StoredSample, ...]:
        """Samples as the reward normalisation left them, with advantages."""
        return self.parts["normalised"]

    @property
    def engine_log_probs(self) -> LogProbs:
        return self.parts["engine_log_probs"]

    @property
    def trainer_log_probs(self) -> LogProbs:
        return self.parts["trainer_log_probs"]

    @property
    def plan(self) -> TrainingPlan:
        return self.parts["plan"]

    @property
    def trained(self) -> TrainedIteration:
        return self.parts["trained"]

    @property
    def sync(self) -> SyncResult:
        return self.parts["sync"]

    @property
    def sync_log_probs(self) -> tuple[SyncLogProbs, ...] | None:
        """What the sync's figures are made of; None where the record has the figures alone."""
        return self.parts.get("sync_log_probs")

    @property
    def replay(self) -> Replay:
        return self.parts["replay"]

    @property
    def invariance(self) -> Invariance:
        return self.parts["invariance"]

    @property
    def ledger(self) -> tuple[Event, ...]:
        return self.parts["ledger"]

    def events(self, name: str) -> list[Event]:
        return [e for e in self.ledger if e["event"] == name]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything the checks of one run may look at.

    Args:
        iterations: one entry for every iteration of the scenario, with the parts that could be read.
        prompts: prompt id to label, from the SOURCE of the data; None where the prompts table is not at hand.
        prompt_digests: prompt id to sha256 of the prompt's text, from the source too.
        hooks_of_prompts: prompt id to generate hook, of those prompts whose own metadata names one.
        rewards_of_prompts: the same of reward hooks.
        model: the DOWNLOADED weights, which the trainer did not export; None where they are not on this host.
        store: where gradient files are read from.
        hook_packages: packages that reward hooks may be loaded from, to grade again.
        complete: False where only part of the scenario's iterations is shown (after a fault, or to a check).
    """

    run_id: str
    scenario: Scenario
    store: ArtifactStore
    iterations: tuple[IterationEvidence, ...]
    model: ModelRef | None = None
    prompts: Mapping[str, str] | None = None
    prompt_digests: Mapping[str, str] = field(default_factory=dict)
    hooks_of_prompts: Mapping[str, str] = field(default_factory=dict)
    rewards_of_prompts: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    ledger_faults: tuple[LedgerFault, ...] = ()
    hook_packages: tuple[str, ...] = HOOK_PACKAGES
    absent: tuple[Absent, ...] = ()
    complete: bool = True

    def with_parts(self, parts: tuple[str, ...]) -> "Evidence":
        """The same evidence, showing only iterations that have all of these parts."""
        shown = tuple(i for i in self.iterations if all(p in i.parts for p in parts))
        return replace(self, iterations=shown, complete=len(shown) == len(self.iterations))

    def having(self, *parts: str) -> list[IterationEvidence]:
        """The iterations that have all of these parts."""
        return [i for i in self.iterations if all(p in i.parts for p in parts)]

    def missing(self, parts: tuple[str, ...]) -> list[Absent]:
        """Which of these parts could not be read, in the order of the run."""
        return [a for a in self.absent if a.part in parts]
