"""A small engine in this process, for hooks to generate with: a model through transformers, on the CPU, seeded."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from infra.errors import RequestRefused

VERSION = "as downloaded"


@dataclass(frozen=True, kw_only=True)
class Generated:
    tokens: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length"]
    weight_version: str = VERSION


class SmallModel:
    """A model of a folder in float32. Log-probs are of logits / temperature, in nats."""

    def __init__(self, folder: Path):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self.model = model.eval()
        self.context: int = model.config.max_position_embeddings
        self.vocabulary: int = model.config.vocab_size

    def become(self, folder: Path) -> None:
        """Take the weights of a model folder of the same shape."""
        for path in sorted(folder.glob("*.safetensors")):
            self.load(path.read_bytes())

    def load(self, weights: bytes) -> None:
        """Take weights of the same shape, as safetensors under Hugging Face names; tied ones may be left out."""
        from safetensors.torch import load

        self.model.load_state_dict(load(weights), strict=False)

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, vocabulary]."""
        return self.model(torch.tensor([list(tokens)])).logits[0].float()

    def log_probs(self, tokens: Sequence[int], response_length: int, temperature: float) -> list[float]:
        """[response_length] of the last tokens, each given all before it."""
        if response_length == 0:
            return []
        rows = (self.logits(tokens)[-response_length - 1 : -1] / temperature).log_softmax(-1)
        return rows.gather(-1, torch.tensor(list(tokens[-response_length:]))[:, None])[:, 0].tolist()


@dataclass(kw_only=True)
class SmallEngine:
    """The engine protocol (`tasks.rollout.calls.Engine`) over a small model; equal requests give equal answers.

    The order in which requests end is the engine's own and hangs on no clock: of all that wait, the one with the
    lowest seed is answered first, or with `highest_seed_first` the one with the highest.
    """

    model: SmallModel
    highest_seed_first: bool = False
    version: str = VERSION
    turns: "Turns" = field(default_factory=lambda: Turns())

    async def generate(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float,
        stop_token_ids: list[int],
        seed: int,
    ) -> Generated:
        """Raises RequestRefused: prompt and answer do not fit the context, or a token is not in the vocabulary."""
        self._refuse(input_ids, max_new_tokens)
        await self.turns.wait(-seed if self.highest_seed_first else seed)
        draw, tokens, log_probs = torch.Generator().manual_seed(seed), list(input_ids), []
        for _ in range(max_new_tokens):
            log_p = (self.model.logits(tokens)[-1] / temperature).log_softmax(-1)
            token = int(torch.multinomial(_nucleus(log_p.exp(), top_p), 1, generator=draw))
            tokens.append(token)
            log_probs.append(float(log_p[token]))
            if token in stop_token_ids:
                return self._generated(tokens[len(input_ids) :], log_probs, "stop")
        return self._generated(tokens[len(input_ids) :], log_probs, "length")

    def _generated(self, tokens: list[int], log_probs: list[float], why: Literal["stop", "length"]) -> Generated:
        return Generated(tokens=tokens, log_probs=log_probs, finish_reason=why, weight_version=self.version)

    def _refuse(self, input_ids: list[int], max_new_tokens: int) -> None:
        if len(input_ids) + max_new_tokens > self.model.context:
            raise RequestRefused(f"The model's context is {self.model.context} tokens.", ids=[len(input_ids)])
        if strange := [t for t in input_ids if t >= self.model.vocabulary]:
            raise RequestRefused(f"Token {strange[0]} is not among the model's {self.model.vocabulary}.", ids=strange)


class Turns:
    """Lets waiting coroutines go on one at a time, the lowest place first, once no other has come for a while.

    "A while" is counted in turns of the event loop: what hooks do between two engine calls takes a few.
    """

    QUIET_TURNS = 50

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._came = 0
        self._usher: asyncio.Task[None] | None = None

    async def wait(self, place: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._came += 1
        self._waiting.append((place, self._came, turn))
        if self._usher is None or self._usher.done():
            self._usher = asyncio.create_task(self._let_in())
        await turn

    async def _let_in(self) -> None:
        while self._waiting:
            seen, quiet = self._came, 0
            while quiet < self.QUIET_TURNS:
                await asyncio.sleep(0)
                seen, quiet = (self._came, 0) if seen != self._came else (seen, quiet + 1)
            self._waiting.sort()
            _, _, turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The fewest likeliest tokens that together have `top_p`, the others 0."""
    if top_p >= 1:
        return probabilities
    ordered, order = probabilities.sort(descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probabilities.index_fill(-1, order[outside], 0.0)
