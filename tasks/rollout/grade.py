"""Rewards of finished rollouts.

A rollout has one reward. A reward hook of one sample is asked once a rollout, with the LAST sibling (the final answer),
and all siblings carry what it says. The batch form gets all samples of a prompt group and answers for each; siblings
have to agree. With `siblings_scored_apart` every sibling is asked for and may differ. Rewards that the generate hook
has set stand: nobody is asked for those.
"""

import asyncio
import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hooks.sample import Sample
from infra.errors import ContractViolation, FanlineError, HookFailed
from infra.hook_loading import Hook
from tasks.rollout.contract import Rollout
from tasks.rollout.deadline import hook_deadline


@dataclass(frozen=True, kw_only=True)
class GradingStage:
    """How an iteration is graded.

    Args:
        args: the scenario as hooks see it.
        hook_of: the reward hook of a rollout.
        scored_apart: the scenario's `siblings_scored_apart`.
        hook_seconds: longest that one call of a reward hook may take.
    """

    args: Any
    hook_of: Callable[[Rollout], Hook]
    scored_apart: bool
    concurrency: int
    hook_seconds: float


async def grade_all(rollouts: Sequence[Rollout], stage: GradingStage) -> None:
    """Set the reward of every sample.

    Raises:
        HookFailed: the reward hook raised; with the ids of the answer. It is not asked again.
        ContractViolation: a reward that is missing or not finite, too few or too many rewards, siblings that disagree.
    """
    units = _units(rollouts, stage)
    waiting = iter(units)

    async def take_turns() -> None:
        for hook, members in waiting:
            await _grade(hook, members, stage)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(stage.concurrency, len(units))):
                group.create_task(take_turns())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures.exceptions[0].__cause__
    for rollout in rollouts:
        _settle(rollout, stage)


def _units(rollouts: Sequence[Rollout], stage: GradingStage) -> list[tuple[Hook, list[Rollout]]]:
    """What is graded at once: a rollout alone, or with a batch hook all rollouts of its prompt group."""
    units: dict[tuple[str, int, int | None], tuple[Hook, list[Rollout]]] = {}
    for rollout in rollouts:
        hook = stage.hook_of(rollout)
        key = (hook.path, rollout.slot.group_index, None if hook.takes_samples else rollout.slot.index)
        units.setdefault(key, (hook, []))[1].append(rollout)
    return list(units.values())


async def _grade(hook: Hook, rollouts: list[Rollout], stage: GradingStage) -> None:
    if hook.takes_samples:
        missing = [s for r in rollouts for s in r.siblings if s.reward is None]
        if missing:
            rewards = await _ask(hook, rollouts, stage, missing)
            _refuse_other_length(hook, rollouts, missing, rewards)
            for sample, reward in zip(missing, rewards, strict=True):
                sample.reward = reward
        return
    for rollout in rollouts:
        given = any(s.reward is not None for s in rollout.siblings)
        wanted = rollout.siblings if stage.scored_apart else [] if given else rollout.siblings[-1:]
        for sample in wanted:
            if sample.reward is None:
                sample.reward = await _ask(hook, [rollout], stage, sample)


async def _ask(hook: Hook, rollouts: list[Rollout], stage: GradingStage, what: Sample | list[Sample]) -> Any:
    try:
        async with hook_deadline(stage.hook_seconds):
            answer = hook.function(stage.args, what)
            return await answer if inspect.isawaitable(answer) else answer
    except FanlineError:
        raise
    except Exception as cause:  # a hook is user code: whatever it raises is its failure, told with its ids
        raise HookFailed(
            f"Reward hook {hook.path} raised for {_names(rollouts)}: {type(cause).__name__}: {cause}.",
            next_step="A grader that fails is never a reward of 0: mend it or take the answer out.",
            ids=[r.rollout_id for r in rollouts],
        ) from cause


def _refuse_other_length(hook: Hook, rollouts: list[Rollout], samples: list[Sample], rewards: Any) -> None:
    if not isinstance(rewards, Sequence) or isinstance(rewards, str):
        count = f"a {type(rewards).__name__}"
    elif len(rewards) == len(samples):
        return
    else:
        count = f"{len(rewards)} reward{'s' if len(rewards) != 1 else ''}"
    raise ContractViolation(
        f"Reward hook {hook.path} got {len(samples)} samples and returned {count}, for {_names(rollouts)}.",
        next_step="Return a list with one reward for each sample, in their order.",
        ids=[r.rollout_id for r in rollouts],
    )


def _settle(rollout: Rollout, stage: GradingStage) -> None:
    """One finite reward for all siblings, or one each where they are scored apart."""
    rewards = [s.reward for s in rollout.siblings if s.reward is not None]
    if not stage.scored_apart and rewards:
        values = [scalar_reward(r, rollout, stage) for r in rewards]
        if len(set(values)) > 1:
            raise ContractViolation(
                f"Siblings of rollout {rollout.rollout_id} have the rewards {', '.join(map(str, values))}, "
                f"for {rollout.where}, reward hook {stage.hook_of(rollout).path}.",
                next_step="Give them one reward, or set rollout.siblings_scored_apart.",
                ids=[rollout.rollout_id, rollout.slot.group_index, rollout.slot.index],
            )
        for sample in rollout.siblings:
            sample.reward = rewards[-1] if sample.reward is None else sample.reward
    for sample in rollout.siblings:
        scalar_reward(sample.reward, rollout, stage)


def scalar_reward(reward: Any, rollout: Rollout, stage: GradingStage) -> float:
    """The number that is trained on: the reward, or its entry `reward_key`.

    Raises:
        ContractViolation: there is none, or it is not finite.
    """
    key = stage.args.reward_key
    value = reward.get(key) if isinstance(reward, dict) and key else reward
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    said = "no reward" if value is None else f"the reward {value!r:.80}"
    where = f" under reward_key {key!r}" if isinstance(reward, dict) and key else ""
    raise ContractViolation(
        f"Reward hook {stage.hook_of(rollout).path} gave {said}{where} to rollout {rollout.rollout_id}, "
        f"for {rollout.where}.",
        next_step="A reward is a finite number, or a dict that holds one under rollout.reward_key.",
        ids=[rollout.rollout_id, rollout.slot.group_index, rollout.slot.index],
    )


def _names(rollouts: list[Rollout]) -> str:
    ids = ", ".join(str(r.rollout_id) for r in rollouts)
    return f"rollout {ids} of prompt group {rollouts[0].slot.group_index} (prompt id {rollouts[0].slot.prompt_id!r})"
