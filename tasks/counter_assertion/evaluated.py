"""Evaluations: made where the scenario asks for them, once a slot, by the weights of their iteration, never trained."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tasks.counter_assertion.evidence import Evidence, IterationEvidence
from tasks.counter_assertion.findings import Findings

TOLERANCE = 1e-9


def compare_evaluated(evidence: Evidence, found: Findings) -> None:
    """Findings about the evaluations of a run; none where the scenario asks for none."""
    trained = {s.index for it in evidence.iterations for s in it.normalised}
    for it in evidence.iterations:
        due, made = evidence.scenario.evaluates_after(it.iteration), "evaluation" in it.parts
        if due and not made and evidence.fault is None:
            found.add(f"the weights of iteration {it.iteration} were not evaluated", it.iteration)
        if made:
            _slots(it, found)
            _record(it, found)
            for index in sorted({s.index for s in it.parts["evaluation"]} & trained):
                found.add(f"slot {index} of the evaluation of iteration {it.iteration} was trained", index)


def _slots(it: IterationEvidence, found: Findings) -> None:
    """Every drawn slot was called, graded and stored once, or dropped with a reason."""
    events, where = it.parts["evaluation_ledger"], f"the evaluation of iteration {it.iteration}"
    drawn = [slot for e in _named(events, "drawn") for slot in e["indices"]]
    called = Counter((e["index"], e["attempt"]) for e in _named(events, "called"))
    stored = {s.index for s in it.parts["evaluation"]}
    dropped = {e["index"] for e in _named(events, "dropped") if e["reason"]}
    for slot in drawn:
        if called[slot, 1] != 1:
            found.add(f"slot {slot} of {where} was called {called[slot, 1]} times in its first attempt", slot)
        if (slot in stored) is (slot in dropped):
            what = "stored and dropped" if slot in stored else "neither stored nor dropped with a reason"
            found.add(f"slot {slot} of {where} is {what}", slot)
    for slot in sorted(stored - set(drawn)):
        found.add(f"slot {slot} of {where} was not drawn", slot)


def _record(it: IterationEvidence, found: Findings) -> None:
    """The weights and the mean reward that the record names are those of its samples."""
    ref, where = it.parts["evaluation_ref"], f"the evaluation of iteration {it.iteration}"
    version = it.trained.weight_version
    if wrong := sorted({s.weight_version for s in it.parts["evaluation"]} - {"", version}):
        found.add(f"{where} was generated with weights {wrong}, trained were {version!r}", it.iteration)
    last = {s.rollout_id: s.reward for s in sorted(it.parts["evaluation"], key=lambda s: s.sibling)}
    mean = sum(r or 0.0 for r in last.values()) / max(len(last), 1)
    said = ref.figures.get("mean reward", mean)
    if not abs(said - mean) <= TOLERANCE:
        found.add(f"{where} says a mean reward of {said:.6g}, its samples have {mean:.6g}", it.iteration)


def _named(events: Sequence[Any], name: str) -> list[Any]:
    return [e for e in events if e["event"] == name]
