"""The stock generate: one generation of the engine, appended to a sample. Hooks are built from calls of it."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hooks.protocols import GenerationContext

_context: ContextVar[GenerationContext | None] = ContextVar("generation context of the running rollout", default=None)


@contextmanager
def generating_through(context: GenerationContext) -> Iterator[None]:
    """Answer every `generate` of this task and of the tasks it starts by `context`."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], *, call: str | None = None) -> Any:
    """Let the engine continue `sample` (its prompt, or prompt and response so far); the same sample comes back.

    Args:
        sampling_params: `max_new_tokens` and the like; never changed here.
        call: name of this generation within its rollout (`plan`, `solve/2`). Generations that run side by side need
            names of their own; those without a name draw on one budget in call order.

    Outside the pipeline this is slime's own generate, which knows no names and changes the dict it gets: a copy.
    """
    context = _context.get()
    if context is not None:
        return await context.generate(sample, dict(sampling_params), call)
    slime = importlib.import_module("slime.rollout.sglang_rollout")
    return await slime.generate(args, sample, dict(sampling_params))
