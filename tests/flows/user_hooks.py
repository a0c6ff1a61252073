"""Hooks as a person might write them, wrong ones included."""

import asyncio
import copy
import itertools

from hooks.stock import generate
from hooks.subagents import solve_in_parts

calls = itertools.count()


async def returns_none(args, sample, sampling_params):
    await generate(args, sample, sampling_params)


async def returns_nothing(args, sample, sampling_params):
    return []


async def siblings_without_id(args, sample, sampling_params):
    sample = await generate(args, sample, sampling_params)
    return [sample, copy.deepcopy(sample)]


async def raises(args, sample, sampling_params):
    raise RuntimeError("the tool server said no")


async def raises_once(args, sample, sampling_params):
    """The first call of the process fails; every retry works."""
    if next(calls) == 0:
        raise RuntimeError("the tool server said no, once")
    return await generate(args, sample, sampling_params)


async def slow_parts(args, sample, sampling_params):
    """What `tiny` does, slowly: time enough to end something in the middle of a rollout."""
    await asyncio.sleep(4)
    return await solve_in_parts(args, sample, sampling_params)
