"""A generation engine that is a function of its arguments: what the engine protocol promises, in a few lines."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from infra.errors import EngineUnavailable, RequestRefused


@dataclass(frozen=True, kw_only=True)
class Generated:
    tokens: list[int]
    log_probs: list[float]
    finish_reason: str
    weight_version: str = "v0"


@dataclass(kw_only=True)
class FunctionEngine:
    """Tokens, log-probs and length follow from (prompt, seed) by a hash.

    `length` fixes the number of tokens; `aborts` says which requests end early, by (number of the request, seed);
    `delay` lets requests end in another order than they came; `dies_after` requests it is gone;
    a prompt and answer of more than `context` tokens are refused.
    """

    length: int | None = None
    aborts: Callable[[int, int], bool] = lambda number, seed: False
    delay: Callable[[int], float] = lambda seed: 0.0
    dies_after: int | None = None
    context: int | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def generate(self, input_ids: list[int], *, max_new_tokens: int, seed: int, **sampling: Any) -> Generated:
        number = len(self.requests)
        if self.dies_after is not None and number >= self.dies_after:
            raise EngineUnavailable("the engine is gone", ids=[number])
        if self.context is not None and len(input_ids) + max_new_tokens > self.context:
            raise RequestRefused("status 400: longer than the model's context length", ids=["/generate"])
        self.requests.append({"input_ids": input_ids, "max_new_tokens": max_new_tokens, "seed": seed, **sampling})
        await asyncio.sleep(self.delay(seed))
        digest = hashlib.shake_256(json.dumps([input_ids, seed]).encode()).digest(1 + max_new_tokens)
        wanted = self.length if self.length is not None else 1 + digest[0] % 6
        tokens = [48 + b % 10 for b in digest[1 : 1 + min(wanted, max_new_tokens)]]
        reason = "stop" if len(tokens) < max_new_tokens else "length"
        if self.aborts(number, seed):
            tokens, reason = tokens[:1], "abort"
        return Generated(tokens=tokens, log_probs=[-(1 + t % 7) / 8 for t in tokens], finish_reason=reason)


class BytesTokenizer:
    """One token a byte."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        return bytes(map(int, token_ids)).decode(errors="replace")

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in conversation) + "<assistant>"


@dataclass(kw_only=True)
class FunctionServer:
    """The handle of an engine that is another one after each restart: `running`, `client()`, `restart()`."""

    engines: list[FunctionEngine]
    restarts: int = 0
    running: bool = True

    def client(self) -> contextlib.AbstractAsyncContextManager[FunctionEngine]:
        return contextlib.nullcontext(self.engines[self.restarts])

    def restart(self) -> None:
        self.restarts += 1
