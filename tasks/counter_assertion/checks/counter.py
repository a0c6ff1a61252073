"""Every drawn slot went through its generate hook exactly once: by ids, not by a count.

Its hook is the scenario's, or the one that the prompt's own metadata names as `generate_function_path`. Its text is the
source's of this prompt id, as far as the draw says what it was (hooks may change it later), and a prompt is drawn once
an epoch: for another prompt's text, or for the same prompts in every iteration, the hook is called just as often.
A retry is not a second call: it is the next attempt of the same slot after the ledger says why the one before failed.
A slot that one iteration holds back (partial rollouts) goes through its hook once more in the next, and in no other.
"""

from collections import Counter

from infra.records.verdict import CheckResult
from tasks.counter_assertion.evidence import Event, Evidence, IterationEvidence
from tasks.counter_assertion.findings import Findings

NAME = "counter"
NEEDS = ("ledger",)


def check(evidence: Evidence) -> CheckResult:
    """Compare `drawn`, `called` and `attempt_failed` events of every iteration with what the scenario asks for."""
    found, slots, calls, retries = Findings(), 0, 0, 0
    owner: dict[int, int] = {}  # slot -> iteration: a slot is unique in the run
    rows: dict[tuple[str, int], int] = {}  # (prompt id, epoch) -> group: a prompt is drawn once an epoch
    waiting: dict[int, Event] = {}
    for it in evidence.iterations:
        drawn = _drawn_slots(evidence, it, found)
        for e in (*it.events("drawn"), *it.events("continued")):
            _compare_prompt(evidence, e, rows, found)
        for slot in drawn:
            if slot in owner:
                found.add(f"slot {slot} was drawn in iterations {owner[slot]} and {it.iteration}", slot)
            owner[slot] = it.iteration
        calls += len(it.events("called"))
        slots += len(drawn)
        continued = _continued(it, waiting, found)
        waiting = {e["index"]: e for e in it.events("held")}
        retries += _compare_calls(it, {**drawn, **continued}, found)
    if waiting and evidence.complete:
        found.add(f"slots {sorted(waiting)} were held back in the last iteration and never went on", *sorted(waiting))
    hooks = ", ".join(sorted({e["hook"] for it in evidence.iterations for e in it.events("drawn")}))
    figures = {"slots": slots, "calls": calls, "retries": retries, "hook": hooks}
    good = f"each of {slots} slots went through {hooks} once ({retries} retries)"
    return found.result(NAME, good, figures)


def _drawn_slots(evidence: Evidence, it: IterationEvidence, found: Findings) -> dict[int, int]:
    """Prompt group of every drawn slot, after comparing the draw with what the scenario asks for."""
    rollout, drawn, where = evidence.scenario.rollout, it.events("drawn"), f"iteration {it.iteration}"
    if len(drawn) != rollout.prompts:
        found.add(f"{where} drew {len(drawn)} prompts, the scenario asks for {rollout.prompts}", it.iteration)
    for group, times in Counter(e["group_index"] for e in drawn).items():
        if times > 1:
            found.add(f"{where} drew prompt group {group} {times} times", group)
    for e in drawn:
        if len(set(e["indices"])) != rollout.rollouts_per_prompt:
            slots, group = len(set(e["indices"])), e["group_index"]
            found.add(f"prompt group {group} has {slots} slots, not {rollout.rollouts_per_prompt}", group)
        wanted = evidence.hooks_of_prompts.get(e["prompt_id"], rollout.generate)
        if e["hook"] != wanted:
            found.add(f"prompt group {e['group_index']} was drawn for {e['hook']}, not for {wanted}", e["group_index"])
    return {slot: e["group_index"] for e in drawn for slot in e["indices"]}


def _compare_prompt(evidence: Evidence, e: Event, rows: dict[tuple[str, int], int], found: Findings) -> None:
    """The text of a drawn prompt, and whether its turn had come; a draw that does not say is not compared."""
    group, prompt = e["group_index"], str(e.get("prompt_id"))
    text, source = e.get("prompt_digest"), evidence.prompt_digests.get(prompt)
    if text and source and text != source:
        found.add(f"prompt group {group} was drawn with another text than the source's of prompt {prompt}", group)
    if "epoch" in e and rows.setdefault((prompt, e["epoch"]), group) != group:
        first = rows[prompt, e["epoch"]]
        found.add(f"prompt {prompt} was drawn twice in epoch {e['epoch']}: as groups {first} and {group}", first, group)


def _continued(it: IterationEvidence, waiting: dict[int, Event], found: Findings) -> dict[int, int]:
    """Prompt group of every slot that goes on here, which has to be what the iteration before held back."""
    group_of = {slot: e["group_index"] for e in it.events("continued") for slot in e["indices"]}
    for slot in sorted(group_of.keys() | waiting.keys()):
        if slot not in group_of:
            found.add(f"slot {slot} was held back before iteration {it.iteration} and did not go on in it", slot)
        elif slot not in waiting:
            found.add(f"slot {slot} went on in iteration {it.iteration} and had not been held back", slot)
        elif waiting[slot]["group_index"] != group_of[slot]:
            was = waiting[slot]["group_index"]
            found.add(f"slot {slot} was held back in group {was} and went on in group {group_of[slot]}", slot)
    return group_of


def _compare_calls(it: IterationEvidence, drawn: dict[int, int], found: Findings) -> int:
    """Look at every call and every drawn slot; gives back the number of retries."""
    due = (*it.events("drawn"), *it.events("continued"))
    hook_of, where = {e["group_index"]: e["hook"] for e in due}, f"iteration {it.iteration}"
    failed = {(e["index"], e["attempt"]) for e in it.events("attempt_failed")}
    seen: Counter[tuple[int, int]] = Counter()
    for e in it.events("called"):
        slot, attempt = e["index"], e["attempt"]
        seen[slot, attempt] += 1
        if slot not in drawn:
            found.add(f"{where} called the hook for slot {slot}, which was not drawn", slot)
        elif e["group_index"] != drawn[slot]:
            found.add(f"slot {slot} was drawn for group {drawn[slot]} and called for {e['group_index']}", slot)
        elif e["hook"] != hook_of[drawn[slot]]:
            found.add(f"slot {slot} of {where} went through {e['hook']}, not through {hook_of[drawn[slot]]}", slot)
        if seen[slot, attempt] > 1:
            found.add(f"slot {slot} of {where} was called {seen[slot, attempt]} times in attempt {attempt}", slot)
        elif attempt > 1 and (slot, attempt - 1) not in failed:
            found.add(f"slot {slot} of {where} was called again though attempt {attempt - 1} had not failed", slot)
    for slot in drawn:
        if (slot, 1) not in seen:
            found.add(f"slot {slot} of {where} was drawn and never called", slot)
    return sum(attempt > 1 for _, attempt in seen)
