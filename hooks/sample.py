"""`Sample`: one training sequence, with the names, types and defaults of THUDM/slime, so that hooks move unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any


class Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """One training sequence of a rollout.

    `tokens` holds prompt and response ids; `loss_mask` and `rollout_log_probs` are aligned with the response only:
    `[response_length]`. Siblings of one rollout share `rollout_id`.
    """

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    weight_versions: list[str] = field(default_factory=list)
    status: Status = Status.PENDING
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    train_metadata: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    Status = Status

    def get_reward_value(self, args: Any) -> float:
        """The scalar reward: the reward itself, or its entry `args.reward_key` where the reward is a dict."""
        key = getattr(args, "reward_key", None)
        return self.reward[key] if key and isinstance(self.reward, dict) else self.reward  # type: ignore[return-value]

    @property
    def effective_response_length(self) -> int:
        """Response tokens that are trained: the sum of the mask, or all where there is none."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def append_response_tokens(
        self,
        tokens: Sequence[int],
        log_probs: Sequence[float] | None = None,
        *,
        trainable: bool = True,
        text: str = "",
    ) -> None:
        """Append to the response, keeping tokens, mask and log-probs in step; lists shared with a copy do not change.

        Raises:
            ValueError: trainable tokens without log-probs, log-probs of another length, or log-probs on tokens that
                are not trainable.
        """
        tokens = list(tokens)
        if trainable:
            if log_probs is None:
                raise ValueError(f"{len(tokens)} trainable tokens without log-probs (sample index {self.index})")
            if len(log_probs) != len(tokens):
                raise ValueError(f"{len(tokens)} tokens, {len(log_probs)} log-probs (sample index {self.index})")
        elif log_probs is not None:
            raise ValueError(f"log-probs on {len(tokens)} tokens that are not trainable (sample index {self.index})")
        mask = self.loss_mask if self.loss_mask is not None else [1] * self.response_length
        old = self.rollout_log_probs if self.rollout_log_probs is not None else [0.0] * self.response_length
        if len(mask) != self.response_length or len(old) != self.response_length:
            raise ValueError(
                f"response of {self.response_length} tokens has {len(mask)} mask values and {len(old)} log-probs "
                f"(sample index {self.index})"
            )
        self.tokens = [*self.tokens, *tokens]
        self.loss_mask = [*mask, *([int(trainable)] * len(tokens))]
        self.rollout_log_probs = [*old, *(map(float, log_probs) if log_probs is not None else [0.0] * len(tokens))]
        self.response_length += len(tokens)
        self.response += text

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able values; the inverse of `from_dict`."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {**self.extra, **known, "status": self.status.value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Sample":
        """Rebuild a sample; keys it does not know are kept and come back from `to_dict`."""
        names = {f.name for f in fields(cls)} - {"extra"}
        known = {k: v for k, v in data.items() if k in names}
        if "status" in known:
            known["status"] = Status(known["status"])
        return cls(**known, extra={k: v for k, v in data.items() if k not in names})
