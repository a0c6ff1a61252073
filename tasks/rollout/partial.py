"""Partial rollouts: a prompt group with an aborted rollout is held back and goes on in the next iteration.

The unit is the prompt group: its rollouts are normalised together, so all of them wait. The hook is run again from its
beginning in the next iteration, as after a failed attempt, but what the engine has answered before is not asked for
again: a call of the same name, turn and input gets the recorded answer, and one that was aborted goes on from its
tokens. So any hook can be continued, however its rollout fans out. A call whose input has become another one, as the
answer before it has grown, is made anew.

Old tokens come from older weights. With `mask_offpolicy` the response that a continued call goes on from leaves the
loss; with `keep` it is trained (off-policy: old log-probs are recomputed by the trainer as for all samples). Answers
that were finished are trained in either case.

In the last iteration nothing can be held back: aborted rollouts are tried again or dropped there, as without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tasks.rollout.calls import Call
from tasks.rollout.contract import Rollout
from tasks.rollout.draw import Slot

CALL_FIELDS = tuple(f.name for f in fields(Call))
NO_CALL = -1  # the turn of the row that every held slot has, also one that made no call yet


@dataclass(frozen=True, kw_only=True)
class Held:
    """A slot that goes on in the next iteration, why, and the engine calls that it has made so far."""

    slot: Slot
    reason: str
    calls: tuple[Call, ...]


def hold_back(made: Sequence[Rollout | Held]) -> tuple[list[Rollout], list[Held]]:
    """The rollouts of prompt groups that are whole, and everything of the groups that wait for one of theirs."""
    waiting: dict[int, int] = {}
    for one in made:
        if isinstance(one, Held):
            waiting.setdefault(one.slot.group_index, one.slot.index)
    whole = [r for r in made if isinstance(r, Rollout) and r.slot.group_index not in waiting]
    held = [
        one
        if isinstance(one, Held)
        else Held(slot=one.slot, reason=f"waits for slot {waiting[one.slot.group_index]} of its group", calls=one.calls)
        for one in made
        if one.slot.group_index in waiting
    ]
    return whole, held


def held_rows(held: Sequence[Held]) -> list[dict[str, Any]]:
    """One row a slot and one for each of its calls (schema PARTIAL_SCHEMA)."""
    rows = []
    for one in held:
        ids = {"index": one.slot.index, "group_index": one.slot.group_index}
        nothing = Call(call="", turn=NO_CALL, seed=0, asked=0, tokens=(), finish_reason="")
        for call in (nothing, *one.calls):
            rows.append({**ids, **asdict(call)})
    return rows


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in CALL_FIELDS}


def continued(slot: Slot, rows: Sequence[Mapping[str, Any]], iteration: int) -> Slot:
    """A held slot as a later iteration takes it: the same ids, and the calls on record."""
    calls = [Call(**_values(row)) for row in rows if row["index"] == slot.index and row["turn"] != NO_CALL]
    return replace(slot, iteration=iteration, continued=True, recorded={(c.call, c.turn): c for c in calls})
