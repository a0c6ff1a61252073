"""Rollouts of several generations, each of which is a training sample of its own: sub-agents and self-revision.

Each later sibling's prompt holds text that an earlier generation of the same rollout produced, so siblings differ in
prompt, length and log-probs. All share one reward: the pipeline grades the last sibling.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any

from hooks.stock import generate

INSTRUCTION = "Check the draft step by step and give the corrected answer."
TURN_END = "<|im_end|>"


async def solve_in_parts(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """Solve the parts of a problem one after another; each part is a sibling with its own prompt, tokens and mask.

    `sample.metadata["parts"]` holds the prompts of the parts. `{answer}` in a part stands for the text that the part
    before it was answered with, as it is: a wrong or malformed answer is carried on, as an agent would.

    Example: parts ["3+4=", "{answer}+5="] -> siblings "3+4=" and, after the answer 7, "7+5="
    """
    parts = sample.metadata.get("parts")
    if not parts:
        raise ValueError(f"sample index {sample.index} has no metadata['parts'], the prompts to solve in turn")
    siblings, answer = [], ""
    for number, part in enumerate(parts):
        sibling = _sibling(sample, part.replace("{answer}", answer))
        siblings.append(await generate(args, sibling, sampling_params, call=f"part/{number}"))
        answer = siblings[-1].response.strip()
    return siblings


async def draft_and_revise(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """Draft an answer, then revise it index % 3 times; each revision reads the question and the text before it.

    `args.hook_options` may hold `instruction` (what a revision is asked to do), `turn_end` (the text that ends a
    turn in a chat-rendered prompt, `<|im_end|>` by default), or `revision`: the whole text of a revision's prompt, for
    models that follow examples and not instructions, in which `{prompt}`, `{draft}` and `{question}` (the last line of
    the prompt) are filled in.
    """
    options = getattr(args, "hook_options", {})  # slime's arguments have none
    siblings = [await generate(args, _sibling(sample, sample.prompt), sampling_params, call="draft")]
    for number in range(1, 1 + sample.index % 3):
        prompt = revision_prompt(sample.prompt, siblings[-1].response.strip(), options)
        revision = _sibling(sample, prompt)
        siblings.append(await generate(args, revision, sampling_params, call=f"revise/{number}"))
    return siblings


def revision_prompt(prompt: Any, draft: str, options: Mapping[str, Any]) -> Any:
    """The question again, with the draft quoted and the instruction behind it.

    Chat messages get it in their last turn, chat-rendered text at the end of its last finished turn, before the header
    of the answer; plain text gets it at its end.
    """
    if isinstance(prompt, str) and "revision" in options:
        values = {"prompt": prompt, "draft": draft, "question": prompt.rpartition("\n")[2]}
        return re.sub(r"\{(prompt|draft|question)\}", lambda name: values[name[1]], options["revision"])
    quoted = "\n".join(f"> {line}" for line in draft.splitlines()) or "> "
    addition = f"\n\nDraft of an answer:\n{quoted}\n\n{options.get('instruction', INSTRUCTION)}"
    if not isinstance(prompt, str):
        last = prompt[-1]
        return [*prompt[:-1], {**last, "content": last["content"] + addition}]
    question, turn_end, header = prompt.rpartition(options.get("turn_end", TURN_END))
    return f"{question}{addition}{turn_end}{header}" if turn_end else f"{prompt}{addition}\n"


def _sibling(sample: Any, prompt: Any) -> Any:
    sibling = copy.deepcopy(sample)
    sibling.prompt, sibling.tokens, sibling.rollout_id = prompt, [], sample.index
    return sibling
