"""What the pipeline refuses from a generate hook, in words that name the hook, the prompt group and the ids.

Everything here happens before anything is graded, let alone trained.
"""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NoReturn

import numpy as np

from hooks.sample import Sample, Status
from infra.errors import ContractViolation
from tasks.rollout.calls import Call
from tasks.rollout.draw import Slot

LARGEST_ID = 2**63 - 1  # ids are stored as int64
MASK_VALUES = frozenset((0, 1))
FIELDS: dict[str, tuple[tuple[type, ...], str]] = {  # what a hook may leave in a sample, and how that is said
    "tokens": ((list, tuple), "a list of token ids; of an array, array.tolist()"),
    "response": ((str,), "text"),
    "label": ((str, NoneType), "text, or None"),
    "loss_mask": ((list, tuple, NoneType), "a list of 0 and 1, or None; of an array, array.tolist()"),
    "rollout_log_probs": ((list, tuple, NoneType), "a list of numbers, or None; of an array, array.tolist()"),
    "weight_versions": ((list, tuple), "a list"),
    "status": ((Status,), "one of Sample.Status, as Sample.Status.COMPLETED"),
    "remove_sample": ((bool, int, np.bool_), "True or False"),
    "metadata": ((dict,), "a dict"),
    "train_metadata": ((dict, NoneType), "a dict, or None"),
}


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One finished rollout: its siblings in the order the hook gave them, and the engine calls they were made of."""

    slot: Slot
    hook: str
    attempt: int
    siblings: list[Sample]
    calls: tuple[Call, ...] = field(default=(), repr=False)

    @property
    def where(self) -> str:
        return f"{self.slot.where}, hook {self.hook}"

    @property
    def rollout_id(self) -> int | None:
        return self.siblings[0].rollout_id


def siblings_of(returned: Any, hook: str, slot: Slot) -> list[Sample]:
    """What a hook returned for one slot, as a list of siblings with the slot's ids.

    A single sample and a list of samples both are fine, side by side in one prompt group too.

    Raises:
        ContractViolation: not a sample or a flat, filled list of samples; a sample that is out of step with itself or
            moved to another prompt group; siblings without one common rollout id.
    """
    siblings = returned if isinstance(returned, list) else [returned]
    if not siblings:
        _refuse(hook, slot, "returned an empty list", "Return a Sample, or a list of at least one.")
    for k, sample in enumerate(siblings):
        if not isinstance(sample, Sample):
            position = f" at position {k} of its list" if isinstance(returned, list) else ""
            _refuse(hook, slot, f"returned {_kind(sample)}{position}", "Return a Sample or a flat list of Samples.")
    if len({id(sample) for sample in siblings}) < len(siblings):
        _refuse(hook, slot, "returned the same Sample object twice", "Return copies: copy.deepcopy(sample).")
    for k, sample in enumerate(siblings):
        _keep_ids(sample, k, hook, slot)
        _refuse_other_types(sample, k, hook, slot)
        _refuse_misaligned(sample, k, hook, slot)
    _refuse_without_common_id(siblings, hook, slot)
    return siblings


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list inside a list"
    return "None" if value is None else f"a {type(value).__name__} ({value!r:.60}), not a Sample"


def _refuse(hook: str, slot: Slot, what: str, next_step: str, *ids: object) -> NoReturn:
    raise ContractViolation(
        f"Hook {hook} {what}, for {slot.where}.", next_step=next_step, ids=[slot.group_index, slot.index, *ids]
    )


def _keep_ids(sample: Sample, k: int, hook: str, slot: Slot) -> None:
    """Samples that a hook built anew get the slot's ids; ids that a hook changed are refused."""
    for name, expected in (("group_index", slot.group_index), ("index", slot.index)):
        value = getattr(sample, name)
        if value is not None and value != expected:
            _refuse(hook, slot, f"changed {name} of sibling {k} to {value}", f"Leave {name} as it is.", value)
    sample.group_index, sample.index = slot.group_index, slot.index


def _refuse_other_types(sample: Sample, k: int, hook: str, slot: Slot) -> None:
    for name, (types, words) in FIELDS.items():
        value = getattr(sample, name)
        if not isinstance(value, types):
            said = "None" if value is None else f"a {type(value).__name__} ({value!r:.60})"
            _refuse(hook, slot, f"gave sibling {k} {said} as {name}", f"`{name}` is {words}.")


def _refuse_misaligned(sample: Sample, k: int, hook: str, slot: Slot) -> None:
    length = sample.response_length
    if not _is_int(length) or length < 0:
        _refuse(hook, slot, f"gave sibling {k} the response length {length!r}", "It counts tokens.")
    if not _are_token_ids(sample.tokens):
        _refuse(hook, slot, f"gave sibling {k} tokens that are not token ids", "`tokens` holds non-negative integers.")
    if len(sample.tokens) <= length:
        what = f"gave sibling {k} {len(sample.tokens)} tokens and a response of {length}"
        _refuse(hook, slot, what, "`tokens` holds the prompt's ids and then the response's.")
    for name in ("loss_mask", "rollout_log_probs"):
        values = getattr(sample, name)
        if values is not None and len(values) != length:
            what = f"gave sibling {k} a response of {length} tokens and {len(values)} values in {name}"
            _refuse(hook, slot, what, "Use sample.append_response_tokens, which keeps them in step.")
    if odd := _odd(sample.loss_mask or (), MASK_VALUES.issuperset, (0, 1).__contains__):
        _refuse(hook, slot, f"gave sibling {k} the mask value {odd[0]!r:.60}", "Mask values are 0 or 1.")
    if odd := _odd(sample.rollout_log_probs or (), _all_finite, math.isfinite):
        _refuse(hook, slot, f"gave sibling {k} the log-prob {odd[0]!r:.60}", "Log-probs are finite numbers.")


def _odd(values: Sequence[Any], all_fine: Callable[[Any], bool], fine: Callable[[Any], bool]) -> list[Any]:
    """Those that are not fine. They are looked at together first: this runs for every token that a run generates."""
    return [] if _holds(all_fine, values) else [v for v in values if not _holds(fine, v)]


def _all_finite(values: Sequence[Any]) -> bool:
    return all(map(math.isfinite, values))


def _holds(test: Callable[[Any], bool], value: Any) -> bool:
    try:
        return test(value)
    except Exception:  # a value of a hook's: whatever it raises where a number is asked for, it is none
        return False


def _are_token_ids(tokens: Sequence[Any]) -> bool:
    """Plain ints, as nearly always, are looked at together: this runs for every token that a run generates."""
    if set(map(type, tokens)) <= {int}:
        return min(tokens, default=0) >= 0
    return all(_is_int(t) and t >= 0 for t in tokens)


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _refuse_without_common_id(siblings: Sequence[Sample], hook: str, slot: Slot) -> None:
    ids = [s.rollout_id for s in siblings]
    if wrong := [i for i in ids if i is not None and (not _is_int(i) or not 0 <= i <= LARGEST_ID)]:
        _refuse(hook, slot, f"gave the rollout_id {wrong[0]!r:.60}", "Ids are non-negative integers below 2**63.")
    if len(siblings) > 1 and (None in ids or len(set(ids)) > 1):
        what = f"returned {len(siblings)} siblings with rollout_id " + ", ".join(map(str, ids))
        _refuse(hook, slot, what, "Set one rollout_id on all of them; sample.index is unique in a run.", *ids)


def aborted_reason(siblings: Sequence[Sample]) -> str | None:
    """Why a rollout can not be used although its hook returned: siblings stand and fall together."""
    aborted = [str(k) for k, s in enumerate(siblings) if s.status is Status.ABORTED]
    return f"sibling {', '.join(aborted)} of {len(siblings)} aborted" if aborted else None


def assign_rollout_ids(ids: Sequence[int | None], used: AbstractSet[int] = frozenset(), first: int = 0) -> list[int]:
    """The ids with the unset ones filled, in order, by the smallest that neither `ids` nor `used` holds.

    Args:
        ids: of samples; every unset one is a rollout of its own.
        used: ids of earlier iterations of the run.
        first: the smallest id to give.

    Example: None 5 5 None 0 None -> 1 5 5 2 0 3
    """
    taken = {i for i in ids if i is not None} | used
    candidate, filled = first, []
    for given in ids:
        if given is None:
            while candidate in taken:
                candidate += 1
            given, candidate = candidate, candidate + 1
        filled.append(int(given))
    return filled


def identify(rollouts: Sequence[Rollout], used: AbstractSet[int] = frozenset(), first: int = 0) -> None:
    """Give every rollout of an iteration its id, and refuse ids that stand for more than one rollout of the run.

    Args:
        rollouts: in order of their index.
        used: ids of earlier iterations.
        first: the smallest id to give to a rollout without one.
    Raises:
        ContractViolation: one id in two prompt groups, in two rollouts of a group, or in an earlier iteration.
    """
    owners: dict[int, Rollout] = {}
    for rollout in rollouts:
        rollout_id = rollout.rollout_id
        if rollout_id is None:
            continue
        if rollout_id in used:
            what = f"gave the rollout_id {rollout_id}, which an earlier iteration of this run has used"
            _refuse(rollout.hook, rollout.slot, what, "Use ids unique in the run, as sample.index.", rollout_id)
        _refuse_second_owner(owners.setdefault(rollout_id, rollout), rollout)
    filled = assign_rollout_ids([r.rollout_id for r in rollouts], used, first)
    for rollout, rollout_id in zip(rollouts, filled, strict=True):
        for sample in rollout.siblings:
            sample.rollout_id = rollout_id


def _refuse_second_owner(first: Rollout, second: Rollout) -> None:
    if first is second:
        return
    groups, indexes = [(r.slot.group_index, r.slot.index) for r in (first, second)], (first.rollout_id,)
    if first.slot.group_index != second.slot.group_index:
        what = f"prompt groups {groups[0][0]} and {groups[1][0]}"
    else:
        what = f"two rollouts of prompt group {first.slot.group_index}"
    raise ContractViolation(
        f"Hook {second.hook} gave rollout_id {first.rollout_id} to {what}: "
        f"rollout index {first.slot.index} (prompt id {first.slot.prompt_id!r}) and "
        f"rollout index {second.slot.index} (prompt id {second.slot.prompt_id!r}).",
        next_step="A rollout_id is one execution of one prompt; sample.index is unique in a run.",
        ids=[*indexes, *groups[0], *groups[1]],
    )


def ids_of(rollouts: Iterable[Rollout]) -> set[int]:
    return {r.rollout_id for r in rollouts if r.rollout_id is not None}
