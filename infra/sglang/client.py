"""Requests to an SGLang server: generation and log-probs by token ids, and the server's few levers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import aiohttp
import orjson

from infra.errors import EngineUnavailable, RequestRefused

CONNECT_SECONDS = 10.0
SETTLE_SECONDS = 30.0
# The server closes a connection that was idle for 5 s: ours are given up before, so that no request meets a closed one.
KEEP_ALIVE_SECONDS = 3.0
PREFILL_SEQUENCES, PREFILL_TOKENS = 32, 8192

FinishReason = Literal["stop", "length", "abort"]
MemoryPart = Literal["weights", "kv_cache"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was generated: `tokens` [n], the log-prob of each [n] (of logits / temperature, float32 values, in nats).

    `finish_reason` is `stop` (end-of-text or a stop id, which is the last token), `length` or `abort`; `weight_version`
    is that of the weights which the last token came from.
    """

    tokens: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    weight_version: str


class Client(Protocol):
    """What stages ask of an engine, of one server or several; methods as of `EngineClient`."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...

    async def generate(
        self,
        input_ids: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        stop_token_ids: Sequence[int] = (),
        seed: int,
    ) -> Generation: ...

    async def prefill_log_probs(self, sequences: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]: ...
    async def weight_version(self) -> str: ...
    async def settle(self) -> None: ...


class EngineClient:
    """A client of one server, for one event loop: `async with EngineClient(url, …) as client`.

    Args:
        request_deadline_seconds: longest that the server may stay silent on one request once it was sent.
        concurrency: connections at once; further requests wait for one.
        headers: sent with every request, for a server that asks for a key.
        log_path: of the server, for messages.
    Raises (every method):
        EngineUnavailable: the server does not answer, breaks off, or answers with a 5xx status.
        RequestRefused: the server answers with a 4xx status.
    """

    def __init__(
        self,
        url: str,
        request_deadline_seconds: float,
        concurrency: int = 64,
        headers: Mapping[str, str] | None = None,
        log_path: Path | None = None,
    ):
        self.url, self.deadline, self.concurrency = url, request_deadline_seconds, concurrency
        self.headers, self.log = dict(headers or {}), log_path or "the engine's log"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # The deadline is on the server's silence, not on the total: time spent waiting for a connection is our own.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self.deadline)
        connector = aiohttp.TCPConnector(limit=self.concurrency, keepalive_timeout=KEEP_ALIVE_SECONDS)
        self._session = aiohttp.ClientSession(self.url, connector=connector, timeout=timeout, headers=self.headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def generate(
        self,
        input_ids: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        stop_token_ids: Sequence[int] = (),
        seed: int,
    ) -> Generation:
        """Continue `input_ids` [prompt]. Equal arguments and weights give equal tokens, whatever else is in flight."""
        sampling = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "stop_token_ids": list(stop_token_ids),
            "sampling_seed": seed,
        }
        answer = await self._generate({"input_ids": list(input_ids), "sampling_params": sampling})
        meta = answer["meta_info"]
        return Generation(
            tokens=answer["output_ids"],
            log_probs=[row[0] for row in meta["output_token_logprobs"]],
            finish_reason=meta["finish_reason"]["type"],
            weight_version=meta["weight_version"],
        )

    async def prefill_log_probs(self, sequences: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """Log-probs that the engine's weights give to stored responses, at temperature 1.

        Args:
            sequences: (tokens [prompt + response], response length); the prompt has at least one token.
        Returns:
            One list [response] a sequence, in nats.

        The sequences go in few batched requests, in order: the same call gives the same bits.
        """
        answers: list[list[float]] = []
        for chunk in chunks(sequences):
            request = {
                "input_ids": [list(tokens) for tokens, _ in chunk],
                "logprob_start_len": [len(tokens) - response - 1 for tokens, response in chunk],
                "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            }
            for (_, response), answer in zip(chunk, await self._generate(request), strict=True):
                # The first row belongs to the token before the response and is null.
                rows = answer["meta_info"]["input_token_logprobs"][1:]
                assert len(rows) == response, f"{len(rows)} log-probs for a response of {response} tokens"
                answers.append([row[0] for row in rows])
        return answers

    async def weight_version(self) -> str:
        """The version that the last weight update was given; `default` before the first."""
        return orjson.loads(await self._request("GET", "/model_info"))["weight_version"]

    async def flush_cache(self) -> None:
        """Forget cached prefixes; refused while requests are running."""
        await self._request("POST", "/flush_cache", {})

    async def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """End requests that nobody waits for any more, of a hook that gave up on them, and return when none runs.

        With one still running, SGLang ends where it is asked for its memory or given other weights.

        Raises:
            EngineUnavailable: some ran on for `seconds`.
        """
        await self.abort_all()
        try:
            await self._request("POST", f"/flush_cache?timeout={seconds:g}", {})
        except RequestRefused as refused:
            raise self._unavailable("POST", "/flush_cache", f"requests run on for {seconds:g} s") from refused

    async def abort_all(self) -> None:
        """End all generations that are running; each returns what it has, with finish reason `abort`."""
        await self._request("POST", "/abort_request", {"abort_all": True})

    async def pause(self) -> None:
        """Hold all generations where they are until `resume`."""
        await self._request("POST", "/pause_generation", {"mode": "in_place"})

    async def resume(self) -> None:
        await self._request("POST", "/continue_generation", {})

    async def release_memory(self, parts: Sequence[MemoryPart]) -> None:
        """Give memory of the accelerator back; no request may be running."""
        await self._request("POST", "/release_memory_occupation", {"tags": list(parts)})

    async def resume_memory(self, parts: Sequence[MemoryPart]) -> None:
        """Take the memory again. The weights are undefined until they are pushed."""
        await self._request("POST", "/resume_memory_occupation", {"tags": list(parts)})

    async def _generate(self, request: dict[str, Any]) -> Any:
        return orjson.loads(await self._request("POST", "/generate", {**request, "return_logprob": True}))

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        assert self._session is not None, "use the client as `async with engine.client() as client`"
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"} if data else None
        try:
            async with self._session.request(method, path, data=data, headers=headers) as response:
                answer = await response.read()
        except TimeoutError as cause:
            raise self._unavailable(method, path, f"sent nothing for {self.deadline:g} s") from cause
        except aiohttp.ClientError as cause:
            raise self._unavailable(method, path, f"{type(cause).__name__}: {cause}") from cause
        if response.status >= 500:
            raise self._unavailable(method, path, f"status {response.status}: {_text(answer)}")
        if response.status >= 400:
            raise RequestRefused(f"{method} {self.url}{path}: status {response.status}: {_text(answer)}", ids=[path])
        return answer

    def _unavailable(self, method: str, path: str, what: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"{method} {self.url}{path}: {what}.",
            next_step=f"Look at the end of {self.log} for why the server is gone or busy.",
            ids=[self.url],
        )


def chunks(sequences: Sequence[tuple[Sequence[int], int]]) -> Iterator[list[tuple[Sequence[int], int]]]:
    """Runs of consecutive sequences with at most PREFILL_SEQUENCES members and PREFILL_TOKENS tokens; one at least."""
    chunk: list[tuple[Sequence[int], int]] = []
    tokens = 0
    for sequence in sequences:
        tokens += len(sequence[0])
        if chunk and (len(chunk) == PREFILL_SEQUENCES or tokens > PREFILL_TOKENS):
            yield chunk
            chunk, tokens = [], len(sequence[0])
        chunk.append(sequence)
    if chunk:
        yield chunk


def _text(answer: bytes) -> str:
    return answer[:300].decode(errors="replace")
