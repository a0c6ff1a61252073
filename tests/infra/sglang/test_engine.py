"""A real SGLang server on the CPU against transformers on the same weights."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing  # its import teaches ForkingPickler to share tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2ForCausalLM

from infra.errors import RequestRefused
from infra.sglang.client import EngineClient
from infra.sglang.engine import MEMORY_PARTS, SGLangEngine
from tests.engine_fixture import END_OF_TEXT, write_tiny_qwen2

pytestmark = pytest.mark.engine

PROMPTS = [[5], [1, 2, 3], [40, 41, 42, 43, 44], list(range(20, 50)), [99, 3, 99, 3], [7] * 12]


@pytest.fixture(scope="module")
def reference(tiny_qwen2: Path) -> Iterator[Qwen2ForCausalLM]:
    """The same weights in transformers; on one thread, which for a model of this size is the fastest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Qwen2ForCausalLM.from_pretrained(tiny_qwen2, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


def ask(engine: SGLangEngine, questions: Callable[[EngineClient], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        async with engine.client() as client:
            return await questions(client)

    return asyncio.run(main())


def generate_all(engine: SGLangEngine, prompts, *, seeds=None, **options) -> list:
    options = {"max_new_tokens": 12, "temperature": 1.0} | options
    seeds = seeds or range(len(prompts))

    async def questions(client: EngineClient):
        return await asyncio.gather(
            *(client.generate(prompt, seed=seed, **options) for prompt, seed in zip(prompts, seeds, strict=True))
        )

    return ask(engine, questions)


@torch.no_grad()
def log_probs(model: Qwen2ForCausalLM, prompt: list[int], response: list[int], temperature: float) -> torch.Tensor:
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].double() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]


@torch.no_grad()
def greedy(model: Qwen2ForCausalLM, prompt: list[int], most: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + most and tokens[len(prompt) :][-1:] != [END_OF_TEXT]:
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_greedy_tokens_are_those_of_transformers(engine, reference):
    generations = generate_all(engine, PROMPTS, temperature=0.0)
    assert [g.tokens for g in generations] == [greedy(reference, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_log_probs_are_those_of_the_divided_logits(engine, reference, temperature):
    for prompt, generation in zip(PROMPTS, generate_all(engine, PROMPTS, temperature=temperature), strict=True):
        expected = log_probs(reference, prompt, generation.tokens, temperature)
        assert len(generation.log_probs) == len(generation.tokens)
        assert torch.allclose(torch.tensor(generation.log_probs).double(), expected, rtol=0, atol=1e-5)


def test_equal_seeds_give_equal_tokens_in_any_batch(engine):
    prompts, seeds = PROMPTS * 3, list(range(100, 100 + 3 * len(PROMPTS)))
    together = [g.tokens for g in generate_all(engine, prompts, seeds=seeds)]
    alone = [generate_all(engine, [p], seeds=[s])[0].tokens for p, s in zip(prompts[:6], seeds, strict=False)]
    backwards = [g.tokens for g in generate_all(engine, prompts[::-1], seeds=seeds[::-1])]
    assert together[:6] == alone
    assert together == backwards[::-1]
    assert len({tuple(tokens) for tokens in together}) == len(prompts)


@settings(max_examples=3, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**31 - 1)), min_size=2, max_size=6))
def test_tokens_depend_on_prompt_and_seed_alone(engine, calls):
    prompts, seeds = [PROMPTS[which] for which, _ in calls], [seed for _, seed in calls]
    first = generate_all(engine, prompts, seeds=seeds, max_new_tokens=6)
    second = generate_all(engine, [*prompts, [1]], seeds=[*seeds, 0], max_new_tokens=6)
    assert [g.tokens for g in first] == [g.tokens for g in second[:-1]]


def test_a_stop_id_ends_a_generation_and_is_its_last_token(engine, reference):
    expected = greedy(reference, PROMPTS[1], 12)
    stop = expected[5]
    (generation,) = generate_all(engine, [PROMPTS[1]], temperature=0.0, stop_token_ids=[stop])
    assert generation.finish_reason == "stop"
    assert generation.tokens == expected[: expected.index(stop) + 1]


def test_the_models_end_of_text_ends_a_generation_without_a_tokenizer(engine):
    generations = generate_all(engine, [PROMPTS[0]] * 16, temperature=5.0, max_new_tokens=48)
    ended = [g for g in generations if g.finish_reason == "stop"]
    assert ended, "16 flat samples of 48 tokens from 128 ids"
    assert all(g.tokens.index(END_OF_TEXT) == len(g.tokens) - 1 for g in ended)
    assert all(END_OF_TEXT not in g.tokens and len(g.tokens) == 48 for g in generations if g not in ended)


def test_prefill_log_probs_are_those_of_the_plain_logits(engine, reference):
    responses = [g.tokens for g in generate_all(engine, PROMPTS, temperature=0.7)]
    sequences = [(prompt + response, len(response)) for prompt, response in zip(PROMPTS, responses, strict=True)]
    answers = ask(engine, lambda client: client.prefill_log_probs(sequences * 8))  # more than one request
    assert answers[: len(sequences)] == ask(engine, lambda client: client.prefill_log_probs(sequences * 8))[:6]
    for prompt, response, answer in zip(PROMPTS * 8, responses * 8, answers, strict=True):
        expected = log_probs(reference, prompt, response, 1.0)
        assert torch.allclose(torch.tensor(answer).double(), expected, rtol=0, atol=1e-5)


def test_no_sequences_give_no_log_probs(engine):
    assert ask(engine, lambda client: client.prefill_log_probs([])) == []


def test_a_prompt_beyond_the_context_is_refused(engine):
    with pytest.raises(RequestRefused, match="context length"):
        generate_all(engine, [[1] * 600])


def test_abort_ends_what_is_running_and_keeps_its_tokens(engine):
    async def questions(client: EngineClient):
        # Several: on a busy machine one could come to its own end before it is aborted.
        asked = [client.generate([k], max_new_tokens=500, temperature=1.0, seed=k) for k in range(8)]
        running = asyncio.gather(*asked)
        while not running.done():
            await asyncio.sleep(0.01)
            await client.abort_all()
        return await running

    aborted = [generation for generation in ask(engine, questions) if generation.finish_reason == "abort"]
    assert aborted and all(len(g.tokens) == len(g.log_probs) < 500 for g in aborted)


def test_what_a_hook_gave_up_on_is_ended_before_memory_or_weights_change(engine):
    """SGLang notices late that nobody waits for an answer, and ends where it is told to flush meanwhile."""

    async def give_up(client: EngineClient) -> None:
        asked = [client.generate([k], max_new_tokens=500, temperature=1.0, seed=k) for k in range(8)]
        running = asyncio.gather(*asked)
        with pytest.raises(RequestRefused):
            while not running.done():
                await client.flush_cache()
                await asyncio.sleep(0.01)
        running.cancel()

    ask(engine, give_up)
    engine.settle()
    ask(engine, lambda client: client.flush_cache())


def test_a_paused_engine_goes_on_where_it_was(engine):
    (expected,) = generate_all(engine, [PROMPTS[2]], seeds=[9], max_new_tokens=60)

    async def questions(client: EngineClient):
        running = asyncio.create_task(client.generate(PROMPTS[2], max_new_tokens=60, temperature=1.0, seed=9))
        await asyncio.sleep(0.05)
        await client.pause()
        await client.resume()
        return await running

    assert ask(engine, questions).tokens == expected.tokens


def test_memory_can_be_released_and_taken_again(engine):
    async def questions(client: EngineClient):
        await client.release_memory(MEMORY_PARTS)
        await client.resume_memory(MEMORY_PARTS)
        return await client.generate(PROMPTS[0], max_new_tokens=2, temperature=1.0, seed=0)

    assert len(ask(engine, questions).tokens) == 2


def push(url: str, model: Qwen2ForCausalLM, version: str) -> None:
    """Send all weights as shared tensors, as a trainer does; they stay alive until the server answered."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    named = [(name, tensor.detach().clone().share_memory_()) for name, tensor in model.named_parameters()]
    payload = BytesIO()
    ForkingPickler(payload, -1).dump(named)
    body = {
        "serialized_named_tensors": [base64.b64encode(payload.getvalue()).decode()],
        "flush_cache": True,
        "weight_version": version,
    }
    request = urllib.request.Request(
        f"{url}/update_weights_from_tensor", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    assert json.load(urllib.request.urlopen(request))["success"]
    torch.multiprocessing.set_sharing_strategy(before)


def test_weights_from_tensors_are_used_and_their_version_is_told(engine, reference, tmp_path):
    other = Qwen2ForCausalLM.from_pretrained(write_tiny_qwen2(tmp_path, seed=1), dtype=torch.float32).eval()
    before = ask(engine, lambda client: client.weight_version())
    push(engine.url, other, "other")
    try:
        assert ask(engine, lambda client: client.weight_version()) == "other"
        generations = generate_all(engine, PROMPTS, temperature=0.0)
        assert [g.tokens for g in generations] == [greedy(other, prompt, 12) for prompt in PROMPTS]
        assert {g.weight_version for g in generations} == {"other"}
    finally:
        push(engine.url, reference, before)
    (back,) = generate_all(engine, [PROMPTS[1]], temperature=0.0)
    assert back.tokens == greedy(reference, PROMPTS[1], 12)
    assert back.weight_version == before
