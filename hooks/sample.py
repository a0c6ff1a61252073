"""`Sample`: one training sequence, with the names, types and defaults of THUDM/slime, so that hooks move unchanged."""

import copy
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


def rollout_id_of(sample: Any) -> int | None:
    """Its `rollout_id`, which not every version of slime's Sample has."""
    return getattr(sample, "rollout_id", None)


def rollout_of(sample: Any) -> tuple[str, int | None]:
    """What siblings share. A sample without `rollout_id` goes by its index."""
    rollout = rollout_id_of(sample)
    return ("index", sample.index) if rollout is None else ("rollout", rollout)


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

    def __deepcopy__(self, memo: dict[int, Any]) -> "Sample":
        """As `copy.deepcopy` does it, but lists of numbers, which are long, are copied at once and not one by one."""
        made = copy.copy(self)
        memo[id(self)] = made
        for name, value in vars(self).items():
            if isinstance(value, (str, int, float, Status)) or value is None:
                continue
            plain = name in ("tokens", "loss_mask", "rollout_log_probs") and type(value) is list
            setattr(made, name, list(value) if plain else copy.deepcopy(value, memo))
        return made

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
        args: Any = None,
        *,
        tokens: Sequence[int],
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append to the response, tokens, mask and log-probs in step; lists that a copy shares are never changed.

        Args:
            args: unused; slime passes its arguments here.
            trainable: tokens that the model generated, with one log-prob each; the others get log-prob 0.0 and mask 0.
            meta_info: SGLang's answer; its finish reason and weight version are taken over unless
                `update_terminal_info` is off.
        Raises:
            ValueError: trainable tokens without log-probs (also those of the response so far), log-probs of another
                length, log-probs on tokens that are not trainable, or a sample whose lists were out of step before.
        """
        tokens = list(map(int, tokens))
        self._refuse_log_probs(tokens, log_probs, trainable)
        mask = self.loss_mask if self.loss_mask is not None else [1] * self.response_length
        old = self.rollout_log_probs if self.rollout_log_probs is not None else [0.0] * self.response_length
        if len(mask) != self.response_length or len(old) != self.response_length:
            raise ValueError(
                f"response of {self.response_length} tokens has {len(mask)} mask values and {len(old)} log-probs "
                f"(sample index {self.index})"
            )
        if self.rollout_log_probs is None and any(mask):
            raise ValueError(f"{sum(mask)} trainable tokens so far without log-probs (sample index {self.index})")
        self.tokens = [*self.tokens, *tokens]
        self.loss_mask = [*mask, *([int(trainable)] * len(tokens))]
        self.rollout_log_probs = [*old, *([0.0] * len(tokens) if log_probs is None else map(float, log_probs))]
        self.response_length += len(tokens)
        self.response += text or ""
        if meta_info is not None and update_terminal_info:
            self._take_over(meta_info)

    def _refuse_log_probs(self, tokens: list[int], log_probs: Sequence[float] | None, trainable: bool) -> None:
        where = f"(sample index {self.index})"
        if log_probs is None:
            if trainable and tokens:
                raise ValueError(f"{len(tokens)} trainable tokens without log-probs {where}")
        elif not trainable:
            raise ValueError(f"log-probs on {len(tokens)} tokens that are not trainable {where}")
        elif len(log_probs) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, {len(log_probs)} log-probs {where}")

    def _take_over(self, meta_info: dict[str, Any]) -> None:
        statuses = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}
        self.status = statuses[meta_info["finish_reason"]["type"]]
        if "weight_version" in meta_info:
            self.weight_versions = [*self.weight_versions, meta_info["weight_version"]]

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
