"""Tokens a second that rollouts get out of an engine through hooks, beside a bare HTTP client on the same server.

Both send the same requests: ids in, ids and log-probs out, seeded. What hooks add is the whole generation stage:
samples, budgets, retries, ledger. The model has random weights; on CUDA it is of the shape of Qwen2.5-0.5B.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import orjson

from hooks.sample import Sample
from hooks.stock import generate
from infra.bench.random_model import write_model
from infra.hook_loading import Hook
from infra.ledger import LedgerWriter
from infra.megatron.device import Kind, resolve
from infra.scenario.load import load
from infra.scenario.model import Engine
from infra.sglang.engine import SGLangEngine
from infra.sources.embedded.model import folder as embedded_folder
from tasks.rollout.calls import CallSettings, seed_of
from tasks.rollout.draw import Slot
from tasks.rollout.generate import GenerationStage, generate_all
from tasks.rollout.stop import load_tokenizer

ROUNDS, OF_SHORT_ONES, SHORT = 3, 7, 256  # a round of at most so many samples takes 1 to 2 s, and spreads more
ON_CUDA, ON_CPU = (64, 256, 1024), (16,)
TOKENS = {"cuda": (128, 512), "cpu": (16, 32)}  # of a prompt, of a response
SILENCE_SECONDS = 600.0


def run(sizes: Sequence[int] | None = None) -> dict[str, Any]:
    """By samples at a time: medians of rounds that take turns, and the share of the bare client's rate.

    The server is in the mode that runs have by default: seeds alone decide over tokens, so both forms get the same.

    Args:
        sizes: samples at a time.
    """
    scenario = load("tiny")
    kind = resolve(scenario)
    sizes = sizes or sizes_on(kind)
    with tempfile.TemporaryDirectory() as folder:
        model, vocabulary = write_model(Path(folder) / "model", kind)
        with server(model, kind, sizes, Path(folder), deterministic=scenario.deterministic) as engine:
            engine.wait_ready()
            rows = RolloutBench(engine, vocabulary, TOKENS[kind], Path(folder)).rows(sizes)
    return {"device": kind, "deterministic": scenario.deterministic, "tokens": TOKENS[kind], "sizes": rows}


def sizes_on(kind: Kind) -> tuple[int, ...]:
    """Samples at a time, where none are given."""
    return ON_CUDA if kind == "cuda" else ON_CPU


def server_settings(kind: Kind, sizes: Sequence[int]) -> Engine:
    """Room for the largest size, and no more: other servers may be on the same GPU."""
    tokens = 2 * max(sizes) * sum(TOKENS[kind])
    return Engine.model_validate(
        {"max_total_tokens": tokens, "max_running_requests": max(sizes), "memory_fraction": 0.9}
    )


def server(model: Path, kind: Kind, sizes: Sequence[int], folder: Path, *, deterministic: bool) -> SGLangEngine:
    """A server for the bench, not started."""
    return SGLangEngine(
        model_path=model,
        settings=server_settings(kind, sizes),
        device=kind,
        deterministic=deterministic,
        seed=0,
        log_path=folder / f"engine-{'exact' if deterministic else 'fast'}.log",
        concurrency=max(sizes),
    )


def prompts(size: int, number: int, length: int, vocabulary: int) -> list[list[int]]:
    """Token ids of a round's prompts; no two begin alike, so that no cache helps."""
    first = (number + 1) * size * 7
    return [[3 + (first + k * 7 + j * 13) % (vocabulary - 3) for j in range(length)] for k in range(size)]


class RolloutBench:
    """Both forms on one server that is ready.

    Args:
        tokens: of a prompt and of a response.
    """

    def __init__(self, engine: SGLangEngine, vocabulary: int, tokens: tuple[int, int], folder: Path):
        self.engine, self.vocabulary, self.folder = engine, vocabulary, folder
        self.prompt, self.response = tokens
        self.tokenizer = load_tokenizer(embedded_folder("tiny")[0])  # the bench's own model has none
        self.settings = CallSettings(
            seed=0, iteration=0, max_response_tokens=self.response, temperature=1.0, top_p=1.0, stop_token_ids=()
        )

    def rows(self, sizes: Sequence[int], rounds: int | None = None) -> list[dict[str, Any]]:
        """One a size; before them the server sets up what it needs for its first requests.

        Args:
            rounds: of every size; by size if not given.
        """
        asyncio.run(self.through_hooks(min(sizes), -1))
        return [self.measure(size, rounds or (OF_SHORT_ONES if size <= SHORT else ROUNDS)) for size in sizes]

    def measure(self, size: int, rounds: int) -> dict[str, Any]:
        made: dict[str, list[tuple[int, float]]] = {"hooks": [], "bare": []}
        for number in range(rounds):
            forms = [("hooks", self.through_hooks), ("bare", self.bare)]
            for form, work in forms if number % 2 else reversed(forms):  # neither is always the first
                made[form].append(asyncio.run(work(size, number)))
        rates = {form: [tokens / seconds for tokens, seconds in each] for form, each in made.items()}
        shares = [h / b for h, b in zip(rates["hooks"], rates["bare"], strict=True)]
        figures = {f"{form}_tokens_a_second": round(median(rate)) for form, rate in rates.items()}
        figures |= {f"{form}_tokens": sum(tokens for tokens, _ in each) for form, each in made.items()}
        return {"samples": size, **figures, "share": round(median(shares), 3), "shares": [round(s, 3) for s in shares]}

    async def through_hooks(self, size: int, number: int) -> tuple[int, float]:
        """Tokens and seconds of one round of `hooks.stock.generate`."""
        slots = [
            Slot(
                iteration=0,
                group_index=k,
                index=k,
                prompt_id=str(k),
                epoch=0,
                sample=Sample(group_index=k, index=k, prompt="", tokens=ids),
            )
            for k, ids in enumerate(prompts(size, number, self.prompt, self.vocabulary))
        ]
        hook = Hook("hooks.stock.generate", generate)
        with LedgerWriter("bench", "rollout", 0, self.folder / "spool") as ledger:
            async with self.engine.client(size) as client:
                await client.flush_cache()
                started = time.perf_counter()
                stage = GenerationStage(
                    args=None,
                    hook_of=lambda _: hook,
                    settings=self.settings,
                    engine=client,
                    tokenizer=self.tokenizer,
                    attempts=1,
                    hook_seconds=3600.0,
                    concurrency=size,
                    ledger=ledger,
                )
                made = await generate_all(slots, stage)
                seconds = time.perf_counter() - started
        return sum(len(call.tokens) for rollout in made for call in rollout.calls), seconds

    async def bare(self, size: int, number: int) -> tuple[int, float]:
        """The same requests with nothing around them."""
        params = {"max_new_tokens": self.response, "temperature": 1.0, "top_p": 1.0, "stop_token_ids": []}
        connector = aiohttp.TCPConnector(limit=size)
        limit = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_SECONDS)
        async with aiohttp.ClientSession(self.engine.url, connector=connector, timeout=limit) as session:
            await (await session.post("/flush_cache")).read()

            async def ask(k: int, ids: list[int]) -> int:
                sampling = {**params, "sampling_seed": seed_of(0, 0, k, "", 0)}
                body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
                headers = {"Content-Type": "application/json"}
                async with session.post("/generate", data=orjson.dumps(body), headers=headers) as answer:
                    return len(orjson.loads(await answer.read())["output_ids"])

            asked = prompts(size, number, self.prompt, self.vocabulary)
            started = time.perf_counter()
            counts = await asyncio.gather(*(ask(k, ids) for k, ids in enumerate(asked)))
            return sum(counts), time.perf_counter() - started
