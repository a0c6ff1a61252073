"""What the scenario's filters take out of a graded iteration, and the figures of its log hook.

A dynamic filter drops whole prompt groups: they are not stored and count for no step, so an iteration takes
floor(rollouts that are left / G) steps. Nothing is drawn again for them. A sample filter marks single samples: they are
stored, their rollouts keep their places in the steps, and nothing of a removed sample is trained. Every dropped rollout
and every removed sample is a ledger line with its reason.

Hooks get copies: of what they do to samples, only `remove_sample` is taken over.
"""

import copy
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from hooks.sample import Sample
from infra.errors import ContractViolation, HookFailed
from infra.hook_loading import Hook
from tasks.rollout.contract import Rollout

Line = dict[str, Any]


def drop_groups(rollouts: Sequence[Rollout], hook: Hook, args: Any) -> tuple[list[Rollout], list[Line]]:
    """The rollouts of the prompt groups that a dynamic filter keeps, and a ledger line for each of the others.

    Args:
        hook: fn(args, samples of a group) -> whether to keep it, or an object with `keep` and `reason` as slime's.
    Raises:
        ContractViolation: it answers anything else.
        HookFailed: it raised.
    """
    groups: dict[int, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.slot.group_index, []).append(rollout)
    kept: list[Rollout] = []
    lines: list[Line] = []
    for group, members in groups.items():
        keep, reason = _decision(_called(hook, group, args, _copies(members)), hook, group)
        if keep:
            kept += members
        lines += [] if keep else [_dropped(r, f"dynamic filter {hook.path}{reason}") for r in members]
    return kept, lines


def _dropped(rollout: Rollout, reason: str) -> Line:
    slot = rollout.slot
    ids = {"rollout_id": rollout.rollout_id, "index": slot.index, "group_index": slot.group_index}
    return {**ids, "reason": reason, "filter": "dynamic"}


def _decision(answer: Any, hook: Hook, group: int) -> tuple[bool, str]:
    given, reason = (answer.keep, getattr(answer, "reason", None)) if hasattr(answer, "keep") else (answer, None)
    keep = _truth(given)
    if keep is None:
        raise ContractViolation(
            f"Dynamic filter {hook.path} answered {given!r:.60} for prompt group {group}.",
            next_step="Return True to keep the group, False to drop it.",
            ids=[hook.path, group],
        )
    return keep, f": {reason}" if reason else ""


def _truth(given: Any) -> bool | None:
    """Whether it is true, also of numpy or torch; None where it is neither true nor false."""
    if given is None or isinstance(given, str | list | dict):
        return None
    try:
        return bool(given)
    except Exception:  # an array of several values
        return None


def remove_samples(rollouts: Sequence[Rollout], hook: Hook | None, args: Any) -> list[Line]:
    """Mark what a sample filter removes; gives back a ledger line for every removed sample, those of others too.

    Args:
        hook: fn(args, samples of the iteration), which sets `remove_sample`; None where the scenario has none.
    Raises:
        ContractViolation: it returned something, which would be lost, or set a mark that is neither true nor false.
        HookFailed: it raised.
    """
    reason = {id(s): f"generate hook {r.hook}" for r in rollouts for s in r.siblings if s.remove_sample}
    if hook is not None:
        samples, copies = [s for r in rollouts for s in r.siblings], _copies(rollouts)
        answer = _called(hook, None, args, list(copies))
        if answer is not None:
            raise ContractViolation(
                f"Sample filter {hook.path} returned a {type(answer).__name__}.",
                next_step="Set sample.remove_sample and return nothing.",
                ids=[hook.path],
            )
        for sample, seen in zip(samples, copies, strict=True):
            if _marked(seen, sample, hook) and not sample.remove_sample:
                sample.remove_sample = True
                reason[id(sample)] = f"sample filter {hook.path}"
    return [
        {"rollout_id": s.rollout_id, "sibling": k, "index": s.index, "reason": reason[id(s)]}
        for r in rollouts
        for k, s in enumerate(r.siblings)
        if s.remove_sample
    ]


def _marked(seen: Sample, sample: Sample, hook: Hook) -> bool:
    mark = _truth(seen.remove_sample)
    if mark is None:
        raise ContractViolation(
            f"Sample filter {hook.path} set remove_sample of rollout {sample.rollout_id} to "
            f"{seen.remove_sample!r:.60}.",
            next_step="Set it to True or False.",
            ids=[hook.path, sample.rollout_id, sample.index],
        )
    return mark


def figures_of(rollouts: Sequence[Rollout], hook: Hook, args: Any, iteration: int) -> dict[str, float]:
    """What a log hook says of the rollouts that are stored.

    Raises:
        ContractViolation: not a dict from names to finite numbers.
        HookFailed: it raised.
    """
    figures = _called(hook, None, args, iteration, _copies(rollouts))
    fine = isinstance(figures, Mapping) and all(isinstance(n, str) and _finite(v) for n, v in figures.items())
    if not fine:
        raise ContractViolation(
            f"Log hook {hook.path} returned {figures!r:.80} for iteration {iteration}.",
            next_step="Return a dict from names to finite numbers.",
            ids=[hook.path, iteration],
        )
    return {name: float(value) for name, value in figures.items()}


def _finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _copies(rollouts: Sequence[Rollout]) -> list[Sample]:
    return [copy.deepcopy(s) for r in rollouts for s in r.siblings]


def _called(hook: Hook, group: int | None, *arguments: Any) -> Any:
    try:
        return hook.function(*arguments)
    except Exception as cause:  # a hook is user code: whatever it raises is its failure, told with its ids
        where = "" if group is None else f" for prompt group {group}"
        raise HookFailed(
            f"Hook {hook.path} raised{where}: {type(cause).__name__}: {cause}.",
            ids=[hook.path, *([] if group is None else [group])],
        ) from cause
