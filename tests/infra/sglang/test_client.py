"""What the client makes of answers, silence and broken connections: loopback servers that answer as SGLang does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import EngineUnavailable, RequestRefused
from infra.ports import free_port
from infra.sglang.client import PREFILL_SEQUENCES, PREFILL_TOKENS, EngineClient, chunks


@contextlib.asynccontextmanager
async def answering(handler, *, deadline: float = 5.0, concurrency: int = 8) -> AsyncIterator[EngineClient]:
    """A client of a server that answers every request by `handler`."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with EngineClient(f"http://127.0.0.1:{port}", deadline, concurrency) as client:
            yield client
    finally:
        await runner.cleanup()


def answer(tokens: list[int], version: str = "3", reason: str = "length") -> web.Response:
    rows = [[-0.5 * token, token, None] for token in tokens]
    meta = {"finish_reason": {"type": reason}, "weight_version": version, "output_token_logprobs": rows}
    return web.json_response({"output_ids": tokens, "meta_info": meta})


async def generate(client: EngineClient):
    return await client.generate([1, 2], max_new_tokens=3, temperature=0.5, top_p=0.9, stop_token_ids=[9], seed=11)


def test_what_is_asked_and_what_comes_back():
    asked = []

    async def handler(request: web.Request) -> web.Response:
        asked.append((request.method, request.path, await request.json()))
        return answer([4, 5])

    async def main():
        async with answering(handler) as client:
            return await generate(client)

    generation = asyncio.run(main())
    assert (generation.tokens, generation.log_probs) == ([4, 5], [-2.0, -2.5])
    assert (generation.finish_reason, generation.weight_version) == ("length", "3")
    sampling = {"max_new_tokens": 3, "temperature": 0.5, "top_p": 0.9, "stop_token_ids": [9], "sampling_seed": 11}
    assert asked == [("POST", "/generate", {"input_ids": [1, 2], "sampling_params": sampling, "return_logprob": True})]


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [(500, EngineUnavailable, "status 500"), (503, EngineUnavailable, "status 503"), (400, RequestRefused, "too long")],
)
def test_a_refusal_is_the_requests_fault_and_a_5xx_the_engines(status, error, text):
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text="the prompt is too long")

    async def main():
        async with answering(handler) as client:
            await generate(client)

    with pytest.raises(error, match=text):
        asyncio.run(main())


def test_silence_ends_at_the_deadline():
    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(2)
        return answer([1])

    async def main():
        async with answering(handler, deadline=0.2) as client:
            await generate(client)

    with pytest.raises(EngineUnavailable, match=r"/generate: sent nothing for 0\.2 s"):
        asyncio.run(main())


def test_a_server_that_breaks_off_or_is_not_there_is_unavailable():
    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return answer([1])

    async def broken_off():
        async with answering(handler) as client:
            await generate(client)

    async def not_there():
        async with EngineClient(f"http://127.0.0.1:{free_port()}", 5.0) as client:
            await generate(client)

    for main in (broken_off, not_there):
        with pytest.raises(EngineUnavailable, match="/generate"):
            asyncio.run(main())


def test_waiting_for_a_connection_does_not_count_against_the_deadline():
    at_once, most = 0, 0

    async def handler(_: web.Request) -> web.Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.2)
        at_once -= 1
        return answer([1])

    async def main():
        async with answering(handler, deadline=1.0, concurrency=2) as client:
            return await asyncio.gather(*(generate(client) for _ in range(20)))  # ten turns, longer than the deadline

    assert len(asyncio.run(main())) == 20
    assert most == 2


sequences = st.lists(st.integers(2, PREFILL_TOKENS + 100).map(lambda n: (range(n), 1)), max_size=12)


@settings(max_examples=50, deadline=None)
@given(sequences)
def test_chunks_keep_the_order_and_only_a_lone_sequence_is_over_the_limit(sequences):
    parts = list(chunks(sequences))
    assert [s for part in parts for s in part] == sequences
    assert all(parts)
    assert all(len(part) == 1 or sum(len(tokens) for tokens, _ in part) <= PREFILL_TOKENS for part in parts)


def test_chunks_hold_a_limited_number_of_sequences():
    assert [len(part) for part in chunks([([1, 2], 1)] * (PREFILL_SEQUENCES + 1))] == [PREFILL_SEQUENCES, 1]
