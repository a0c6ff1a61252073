"""A reward service over HTTP: POST `{"prompt", "response", "label"}` to `rm_url`; it answers a number or an object."""

import asyncio
import math
from typing import Any

import aiohttp

from hooks.rewards.pool import GraderFailed
from hooks.rewards.score import name_of, options_of

LONGEST_PAUSE = 30.0


async def ask(args: Any, sample: Any) -> float | dict[str, Any]:
    """The service's reward for one sample.

    The address is `hook_options["rm_url"]`, or slime's `args.rm_url`. Server errors, refused connections and timeouts
    are tried again (`remote_attempts`, default 5; pauses double from `remote_pause_seconds`, default 1, to 30 s); each
    request has `remote_seconds` (default 120).

    Raises:
        GraderFailed: the service refuses the request, never answers, or answers neither a finite number nor an object;
            names the sample.
    """
    options, name = options_of(args), name_of(sample)
    url = options.get("rm_url") or getattr(args, "rm_url", None)
    if not url:
        raise GraderFailed(name, "remote", "no address: set rollout.hook_options.rm_url")
    body = {"prompt": sample.prompt, "response": sample.response, "label": sample.label}
    attempts, pause = int(options.get("remote_attempts", 5)), float(options.get("remote_pause_seconds", 1.0))
    timeout = aiohttp.ClientTimeout(total=float(options.get("remote_seconds", 120.0)))
    fault = "not tried"
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(pause * 2 ** (attempt - 1), LONGEST_PAUSE))
            try:
                async with session.post(url, json=body) as answer:
                    if answer.status < 400:
                        return _reward(name, await answer.json(content_type=None))
                    fault = f"{url} answered {answer.status}: {(await answer.text())[:200]}"
                    if answer.status < 500 and answer.status not in (408, 429):
                        raise GraderFailed(name, "remote", fault)
            except (aiohttp.ClientError, TimeoutError) as error:
                fault = f"{url}: {type(error).__name__}: {error}"
    raise GraderFailed(name, "remote", f"{fault} (tried {attempts} times)")


def _reward(name: str, answer: Any) -> float | dict[str, Any]:
    number = isinstance(answer, int | float) and math.isfinite(answer)
    if not number and not isinstance(answer, dict):
        raise GraderFailed(name, "remote", f"the service answered {str(answer)[:80]!r}, neither a number nor an object")
    return answer
