"""Siblings share one rollout id, ids are unique over groups and iterations, and group and slot survive every stage."""

from infra.records.verdict import CheckResult
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, Key
from tasks.counter_assertion.findings import Findings

NAME = "identity"
NEEDS = ("rollouts", "normalised", "ledger")


def check(evidence: Evidence) -> CheckResult:
    """Look at the ids of every stored sample, and at those of the draw they come from."""
    found = Findings()
    groups: dict[int, tuple[str, int, int]] = {}
    slots: dict[int, int] = {}
    rollouts: dict[int, tuple[int, int]] = {}
    before: dict[Key, tuple[int, int]] = {}  # of this and earlier iterations: rollouts may be carried over
    samples = 0
    for it in evidence.iterations:
        drawn = {slot: e["group_index"] for e in it.events("drawn") for slot in e["indices"]}
        prompt = {e["group_index"]: e["prompt_id"] for e in it.events("drawn")}
        for s in it.rollouts:
            samples += 1
            home = rollouts.setdefault(s.rollout_id, (s.group_index, s.index))
            if home != (s.group_index, s.index):
                found.add(
                    f"rollout {s.rollout_id} is used by (group, slot) {home} and by {(s.group_index, s.index)}",
                    s.rollout_id,
                )
            if slots.setdefault(s.index, s.rollout_id) != s.rollout_id:
                found.add(f"the siblings of slot {s.index} have rollouts {slots[s.index]} and {s.rollout_id}", s.index)
            source = groups.setdefault(s.group_index, (s.prompt_id, s.epoch, s.iteration))
            if source != (s.prompt_id, s.epoch, s.iteration):
                found.add(f"group {s.group_index} mixes (prompt, epoch, iteration) {source} and others", s.group_index)
            if drawn.get(s.index, s.group_index) != s.group_index:
                found.add(f"slot {s.index} was drawn for group {drawn[s.index]}, stored in {s.group_index}", s.index)
            if prompt.get(s.group_index, s.prompt_id) != s.prompt_id:
                found.add(
                    f"group {s.group_index} was drawn with prompt {prompt[s.group_index]}, stored with {s.prompt_id}",
                    s.group_index,
                )
        _sibling_numbers(it, found)
        before |= {s.key: (s.group_index, s.index) for s in it.rollouts}
        _survived(it, before, found)
    figures = {"samples": samples, "rollouts": len(rollouts), "groups": len(groups)}
    good = f"{len(rollouts)} rollouts of {len(groups)} prompt groups kept their ids through every stage"
    return found.result(NAME, good, figures)


def _sibling_numbers(it: IterationEvidence, found: Findings) -> None:
    siblings: dict[int, list[int]] = {}
    for s in it.rollouts:
        siblings.setdefault(s.rollout_id, []).append(s.sibling)
    for rollout, numbers in siblings.items():
        if len(set(numbers)) != len(numbers):
            found.add(f"rollout {rollout} has siblings {sorted(numbers)}: a number stands for two of them", rollout)


def _survived(it: IterationEvidence, before: dict[Key, tuple[int, int]], found: Findings) -> None:
    """Group and slot of a sample are the same after normalisation."""
    for s in it.normalised:
        if before.get(s.key, (s.group_index, s.index)) != (s.group_index, s.index):
            found.add(
                f"rollout {s.rollout_id} was in (group, slot) {before[s.key]} before reward normalisation and in "
                f"{(s.group_index, s.index)} after it",
                s.rollout_id,
            )
