"""The longest that one call of a hook may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def hook_deadline(seconds: float) -> AsyncIterator[None]:
    """Interrupt a hook that awaits for longer; one that never awaits can not be interrupted.

    Args:
        seconds: `rollout.hook_deadline_seconds`.
    Raises:
        TimeoutError: it took longer, in words; one of the hook's own goes on as it is.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as cause:
        if not limit.expired():
            raise
        raise TimeoutError(f"it took longer than rollout.hook_deadline_seconds, {seconds:g} s") from cause
