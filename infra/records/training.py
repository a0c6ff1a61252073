"""What training an iteration left behind: step results, weights, trainer state."""

from dataclasses import asdict, dataclass
from typing import Any

from infra.store import ObjectRef


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One optimizer step as the trainer saw it.

    `rollout_terms` are the per-rollout loss terms (before the mean over rollouts), by rollout id. `gradient_norm` is of
    the UNCLIPPED gradient; `gradient`, where asked for, its float32 tensors under Hugging Face names, and then
    `weights_before` the weights that the step started from; None where these are the model's own: in the first step.
    `weights_digest`, of the weights after the step, is compared for equality only: any digest will do. `clip_fraction`
    is the share of tokens whose ratio is clipped, `max_ratio_error` the largest |ratio - 1|, `approx_kl` the mean of
    (old - new) log-prob, all over trained tokens.
    """

    iteration: int
    step: int
    loss: float
    rollout_terms: dict[int, float]
    gradient_norm: float
    learning_rate: float
    clip_fraction: float
    max_ratio_error: float
    approx_kl: float
    entropy: float
    tokens: int
    seconds: float
    weights_digest: str
    gradient: ObjectRef | None = None
    weights_before: ObjectRef | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedIteration:
    """The result of the training stage of one iteration.

    `log_probs` are the trainer's log-probs before the first step (schema LOG_PROBS_SCHEMA); `state` is the manifest of
    the trainer state to resume from, of another stack any file; `weight_version` the version that the engine has to
    answer with after the sync; `dtype` the type of the parameters that the forward pass has, which says what is
    rounding. `log_probs_seconds` and `state_seconds` are what the slowest rank took for the log-probs before training,
    and to publish its state.
    """

    iteration: int
    plan: ObjectRef
    steps: tuple[StepResult, ...]
    log_probs: ObjectRef
    state: ObjectRef
    weights_digest: str
    weight_version: str
    ledger: tuple[ObjectRef, ...]
    dtype: str = "float32"
    log_probs_seconds: float = 0.0
    state_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TrainedIteration":
        def step(s: dict[str, Any]) -> StepResult:
            terms = {int(k): v for k, v in s["rollout_terms"].items()}
            files = {k: ObjectRef.from_dict(s[k]) for k in ("gradient", "weights_before") if s.get(k)}
            return StepResult(**{**s, "rollout_terms": terms, **files})

        refs = {name: ObjectRef.from_dict(data[name]) for name in ("plan", "log_probs", "state")}
        ledger = tuple(ObjectRef.from_dict(r) for r in data["ledger"])
        return cls(**{**data, **refs, "steps": tuple(step(s) for s in data["steps"]), "ledger": ledger})


@dataclass(frozen=True, kw_only=True)
class HandOver:
    """Memory of shared GPUs that went to the `engine` or the `trainer`: how long it took, what was free in between."""

    to: str
    seconds: float
    free_gib: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """One weight sync: the engine's answer, and how far its log-probs of stored sequences are from the trainer's.

    `max_log_prob_error` is the largest difference between both after the sync, `moved_log_probs` how far the steps of
    the iteration moved the trainer's: the error has to be far below. `log_probs` are what both are made of (schema
    SYNC_LOG_PROBS_SCHEMA); without them a reader has the figures alone. `weight_version` is the trainer's,
    `engine_version` what the engine answers; `weights_digest` is that of training.json. `hand_overs` are those of the
    iteration, where engine and trainer share GPUs.
    """

    iteration: int
    weight_version: str
    engine_version: str
    weights_digest: str
    tensors: int
    bytes: int
    seconds: float
    sequences_compared: int
    max_log_prob_error: float
    moved_log_probs: float
    hand_overs: tuple[HandOver, ...] = ()
    log_probs: ObjectRef | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
