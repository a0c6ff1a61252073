"""Generate hooks that each do one odd thing which no single rollout shows."""

import asyncio
import copy
import random
import threading

from hooks.stock import generate


async def in_order_of_ending(args, sample, sampling_params):
    """Two named calls side by side, joined as they end: the order of siblings hangs on timing."""
    siblings = [copy.deepcopy(sample) for _ in range(2)]
    for number, sibling in enumerate(siblings):
        sibling.prompt, sibling.rollout_id = f"{number}+{number}=", sample.index
    calls = [generate(args, s, sampling_params, call=f"solve/{n}") for n, s in enumerate(siblings)]
    return [await ended for ended in asyncio.as_completed(calls)]


async def in_order_of_calling(args, sample, sampling_params):
    siblings = [copy.deepcopy(sample) for _ in range(2)]
    for number, sibling in enumerate(siblings):
        sibling.prompt, sibling.rollout_id = f"{number}+{number}=", sample.index
    return list(
        await asyncio.gather(*(generate(args, s, sampling_params, call=f"solve/{n}") for n, s in enumerate(siblings)))
    )


async def side_by_side_without_names(args, sample, sampling_params):
    other = copy.deepcopy(sample)
    await asyncio.gather(generate(args, sample, sampling_params), generate(args, other, sampling_params))
    return sample


async def chance_of_its_own(args, sample, sampling_params):
    sample.prompt = f"{random.random()}+1="
    return await generate(args, sample, sampling_params)


async def answer_replaced(args, sample, sampling_params):
    """The tokens are replaced and keep the log-probs of those that were generated."""
    sample = await generate(args, sample, sampling_params)
    sample.tokens[-1] = 5 if sample.tokens[-1] != 5 else 6
    return sample


async def tool_output_masked(args, sample, sampling_params):
    """Right: text that the engine did not generate is appended without being trained on."""
    sample = await generate(args, sample, sampling_params, call="ask")
    sample.append_response_tokens(tokens=[5, 6, 7], trainable=False, text="")
    return await generate(args, sample, sampling_params, call="answer")


async def far_too_long(args, sample, sampling_params):
    sample.prompt = "1+" * 3000
    return await generate(args, sample, sampling_params, call="long")


async def waits_for_ever(args, sample, sampling_params):
    await asyncio.Event().wait()


async def blocks_for_ever(args, sample, sampling_params):
    """A blocking call in an async function: no timeout of the event loop can end it."""
    threading.Event().wait()


async def swallows_everything(args, sample, sampling_params):
    while True:
        try:
            threading.Event().wait()
        except Exception:
            await asyncio.sleep(0.01)


async def always_right(args, sample):
    return 1.0
