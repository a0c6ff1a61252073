"""Generate hooks of the drill's scenes: what a fault needs to show and the shipped hooks do not do."""

from typing import Any

from hooks.sample import Status
from hooks.subagents import solve_in_parts

TOOL_OUTPUT = (5, 6, 7)


async def with_tool_output(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """Siblings that each end with text that is not trained, as a tool's output."""
    siblings = await solve_in_parts(args, sample, sampling_params)
    for sibling in siblings:
        sibling.append_response_tokens(tokens=list(TOOL_OUTPUT), trainable=False, text="")
    return siblings


async def with_aborted(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    """The rollouts that `hook_options.aborted` lists by index end with an aborted sibling."""
    siblings = await solve_in_parts(args, sample, sampling_params)
    if sample.index in args.hook_options["aborted"]:
        siblings[-1].status = Status.ABORTED
    return siblings
