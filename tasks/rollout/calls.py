"""The engine calls of one rollout: what each may spend, and the seed that it draws from.

A rollout's calls are booked on accounts. Unnamed calls share one account, in call order; a named call has an account of
its own name. Every account opens with the whole `max_response_tokens` of the scenario, and each further call on it (a
turn) gets what the earlier turns left: 100, 70, 40 for three calls of 30 tokens. Seed and budget hang on (account,
turn) alone, so hooks may run calls of different names side by side without the result depending on which one ends
first. For the same reason an account takes one call at a time: the budget of a second one would depend on timing, and
it is refused.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hooks.sample import Sample, Status
from infra.errors import ContractViolation, FanlineError, RequestRefused
from infra.store import canonical_json, sha256

STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


class Generation(Protocol):
    """What the engine generated: `tokens` and one log-prob each; `finish_reason` is stop, length or abort."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def log_probs(self) -> Sequence[float]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def weight_version(self) -> str: ...


class Engine(Protocol):
    """A generation engine. Equal arguments and weights give equal tokens, in any batch."""

    async def generate(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        stop_token_ids: list[int],
        seed: int,
    ) -> Generation: ...


class Tokenizer(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: NDArray[np.int64], *, skip_special_tokens: bool) -> Any: ...
    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class CallSettings:
    """What all calls of an iteration have in common."""

    seed: int
    iteration: int
    max_response_tokens: int
    temperature: float
    top_p: float
    stop_token_ids: tuple[int, ...]

    def sampling_params(self) -> dict[str, Any]:
        """A new dict for a hook, with slime's keys."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": -1,
            "max_new_tokens": self.max_response_tokens,
            "stop": None,
            "stop_token_ids": list(self.stop_token_ids),
            "skip_special_tokens": True,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }


@dataclass(frozen=True)
class Call:
    """One engine call that has ended, for the ledger and for a rollout that goes on in a later iteration.

    Args:
        asked: the token budget of the whole call.
        tokens: the answer, with one log-prob each; with what earlier iterations generated of it in front.
        weight_versions: those that generated it, oldest first.
        input_digest: of the token ids that it was asked with.
    """

    call: str
    turn: int
    seed: int
    asked: int
    tokens: tuple[int, ...]
    finish_reason: str
    log_probs: tuple[float, ...] = field(default=(), repr=False)
    weight_versions: tuple[str, ...] = ()
    input_digest: str = ""


def take_out_of_loss(sample: Sample, tokens: int) -> None:
    """Mask the first tokens of a response. Example: 5 old tokens, 3 new ones -> mask 0 0 0 0 0 1 1 1"""
    mask = sample.loss_mask if sample.loss_mask is not None else [1] * sample.response_length
    sample.loss_mask = [0] * tokens + mask[tokens:]


@dataclass
class _Account:
    remaining: int
    turn: int = 0
    busy: bool = False


def seed_of(run_seed: int, iteration: int, index: int, call: str, turn: int) -> int:
    """The 31-bit seed of one engine call: the same in any batch, process, host and attempt."""
    name = canonical_json([run_seed, iteration, index, call, turn])
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") >> 1


@dataclass(kw_only=True)
class RolloutCalls:
    """The generation context of one attempt at one rollout (`hooks.protocols.GenerationContext`).

    Args:
        index: slot of the rollout, unique in the run.
        where: the rollout in words, for messages; by default its index.
        ids: what else a refusal names: prompt group, prompt id.
        recorded: calls by (name, turn) that the rollout made in earlier iterations, see `tasks.rollout.partial`.
        mask_offpolicy: take the response that an aborted call goes on from out of the loss.

    `log` holds the finished calls. `fault` is the first error that a call ended with: it counts also where the hook
    swallowed the exception.
    """

    settings: CallSettings
    index: int
    engine: Engine
    tokenizer: Tokenizer
    where: str = ""
    ids: tuple[object, ...] = ()
    recorded: Mapping[tuple[str, int], Call] = field(default_factory=dict)
    mask_offpolicy: bool = False
    log: list[Call] = field(default_factory=list)
    fault: FanlineError | None = None

    def __post_init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self.where = self.where or f"Rollout index {self.index}"

    async def generate(self, sample: Sample, sampling_params: Mapping[str, Any], call: str | None) -> Sample:
        """Append one generation to the sample. An account that is spent truncates it without asking the engine.

        Raises:
            ContractViolation: a second call on an account that is in use, a sampling parameter the engine does not
                take, or a prompt that it refuses.
            EngineUnavailable: the engine does not answer.
        """
        try:
            return await self._generate(sample, sampling_params, call or "")
        except FanlineError as fault:
            self.fault = self.fault or fault
            raise

    async def _generate(self, sample: Sample, sampling_params: Mapping[str, Any], call: str) -> Sample:
        params = self._accepted(sampling_params)
        account = self._open(call)
        turn, asked = account.turn, min(account.remaining, params["max_new_tokens"])
        if not sample.tokens:
            sample.tokens = self._prompt_ids(sample.prompt)
        if asked <= 0:
            sample.status = Status.TRUNCATED
            return sample
        account.turn = turn + 1
        begun = self._begun(sample, call, turn, asked)
        ended = begun
        if begun.finish_reason == "abort" and len(begun.tokens) >= asked:
            ended = replace(begun, finish_reason="length")
        elif begun.finish_reason == "abort":
            ended = await self._go_on(sample, begun, params, account)
        account.remaining -= len(ended.tokens)
        self._append(sample, ended, params["skip_special_tokens"])
        if begun.tokens and begun.finish_reason == "abort" and self.mask_offpolicy:
            take_out_of_loss(sample, sample.response_length - len(ended.tokens) + len(begun.tokens))
        self.log.append(ended)
        return sample

    def _begun(self, sample: Sample, call: str, turn: int, asked: int) -> Call:
        """What is on record of the call, if it was asked with the same input; else a call that has no answer yet."""
        seed = seed_of(self.settings.seed, self.settings.iteration, self.index, call, turn)
        new = Call(call, turn, seed, asked, (), "abort", input_digest=sha256(canonical_json(sample.tokens)))
        before = self.recorded.get((call, turn))
        if before is None or before.input_digest != new.input_digest:
            return new
        return replace(before, seed=seed, asked=asked) if before.finish_reason == "abort" else before

    async def _go_on(self, sample: Sample, begun: Call, params: dict[str, Any], account: _Account) -> Call:
        """The call with what the engine adds to it."""
        left = begun.asked - len(begun.tokens)
        account.busy = True
        try:
            generation = await self.engine.generate(
                [*sample.tokens, *begun.tokens],
                max_new_tokens=left,
                temperature=params["temperature"],
                top_p=params["top_p"],
                stop_token_ids=list(params["stop_token_ids"]),
                seed=begun.seed,
            )
        except RequestRefused as refused:
            raise self._refused_by_engine(sample, begun.call, left, refused) from refused
        finally:
            account.busy = False
        return replace(
            begun,
            tokens=(*begun.tokens, *generation.tokens),
            log_probs=(*begun.log_probs, *generation.log_probs),
            finish_reason=generation.finish_reason,
            weight_versions=tuple(dict.fromkeys([*begun.weight_versions, str(generation.weight_version)])),
        )

    def _refused_by_engine(self, sample: Sample, call: str, asked: int, refused: RequestRefused) -> ContractViolation:
        before = f" and {sample.response_length} of a response" if sample.response_length else ""
        prompt = len(sample.tokens) - sample.response_length
        return ContractViolation(
            f"The engine refuses {f'call {call!r}' if call else 'a generation'} of {self.where}: {prompt} tokens of a "
            f"prompt{before}, {asked} more asked for. It says: {refused.message}",
            next_step="Give it a shorter prompt, or lower rollout.max_response_tokens to what the model holds.",
            ids=[*self.ids, self.index, call, prompt, asked],
        )

    def _open(self, call: str) -> _Account:
        account = self._accounts.setdefault(call, _Account(self.settings.max_response_tokens))
        if account.busy:
            name = f"named {call!r}" if call else "without a name"
            raise ContractViolation(
                f"{self.where} runs two generations {name} at the same time.",
                next_step="Give generations that run side by side names of their own: generate(…, call='solve/2').",
                ids=[*self.ids, self.index, call],
            )
        return account

    def _accepted(self, sampling_params: Mapping[str, Any]) -> dict[str, Any]:
        defaults = self.settings.sampling_params()
        params = {**defaults, **sampling_params}
        fixed = [k for k in params if k not in ("temperature", "top_p", "max_new_tokens", "stop_token_ids")]
        fixed.remove("skip_special_tokens")
        if strange := sorted(k for k in fixed if params[k] != defaults.get(k)):
            raise ContractViolation(
                "Sampling parameters that are not served here: "
                + ", ".join(f"{k}={params[k]!r}" for k in strange)
                + f", in {self.where}.",
                next_step="A hook may change temperature, top_p, max_new_tokens, stop_token_ids, skip_special_tokens.",
                ids=[*self.ids, self.index, *strange],
            )
        if not params["temperature"] > 0:
            raise ContractViolation(
                f"The temperature {params['temperature']} is not above 0, in {self.where}.",
                ids=[*self.ids, self.index],
            )
        return params

    def _prompt_ids(self, prompt: str | list[dict[str, str]]) -> list[int]:
        if not isinstance(prompt, str):
            prompt = self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer.encode(prompt, add_special_tokens=False))  # type: ignore[arg-type]

    def _append(self, sample: Sample, answer: Call, skip_special_tokens: bool) -> None:
        tokens = list(answer.tokens)
        # As an array: of a list the tokenizer looks at each element before it decodes it.
        text = self.tokenizer.decode(np.array(tokens, dtype=np.int64), skip_special_tokens=skip_special_tokens)
        sample.append_response_tokens(tokens=tokens, log_probs=answer.log_probs, text=text)
        sample.weight_versions = [*sample.weight_versions, *answer.weight_versions]
        sample.status = STATUS[answer.finish_reason]
