"""generated = graded = packed = trained + reasons, by (rollout_id, sibling), over all processes and iterations."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from infra.records.plan import TrainingPlan
from infra.records.verdict import CheckResult
from infra.store import canonical_json, sha256
from tasks.counter_assertion.evaluated import compare_evaluated
from tasks.counter_assertion.evidence import Event, Evidence, IterationEvidence, Key, trainable
from tasks.counter_assertion.filtered import compare_filtered
from tasks.counter_assertion.findings import Findings

NAME = "ledger"
NEEDS = ("ledger", "rollouts", "normalised", "plan", "trained")


def check(evidence: Evidence) -> CheckResult:
    """Follow every sample from generation to training; whatever stops on the way needs a reason."""
    found = Findings()
    for fault in evidence.ledger_faults:
        found.add(f"ledger segment {fault.segment} line {fault.line} {fault.what}", fault.segment)
    events = [e for it in evidence.iterations for e in it.ledger]
    shared = _shared_ids(evidence, found)
    events = [e for e in events if e.get("rollout_id") not in shared]
    generated = _once(_keys(events, "generated"), "generated", found)
    graded = _once(_keys(events, "graded"), "graded", found)
    dropped = _reasons(events)
    stored = {s.key for it in evidence.iterations for s in it.rollouts if s.rollout_id not in shared}
    index_of = {(e["rollout_id"], e["sibling"]): e["index"] for e in events if e["event"] == "generated"}

    def excused(key: Key) -> bool:
        return ("rollout", key[0]) in dropped or ("index", index_of.get(key)) in dropped

    _flow("generated", generated, "stored", stored, excused, found)
    to_train = {s.key for it in evidence.iterations for s in trainable(it.rollouts)} & stored
    _same_tokens(evidence, events, found)
    _same_status(evidence, events, found)
    _flow("stored", to_train, "graded", {k for k in graded if k in to_train}, excused, found)
    for key in sorted(k for k in graded if k not in generated):
        found.add(f"sample {_name(key)} was graded and never generated", key)
    packed, left_out = _packed(evidence, shared, found)
    normalised = {s.key for it in evidence.iterations for s in it.normalised}
    _flow("stored", to_train, "normalised", normalised & to_train, excused, found)
    _compare_normalised(evidence, {key[0] for key in to_train}, found)
    _flow("normalised", normalised & to_train, "packed", packed, lambda k: k[0] in left_out or excused(k), found)
    _compare_trained(evidence, packed, events, found)
    compare_filtered(evidence, found)
    compare_evaluated(evidence, found)
    dummies = sum(len(it.events("dummy")) for it in evidence.iterations)
    figures = {
        "generated": len(generated),
        "stored": len(stored),
        "graded": len(graded),
        "packed": len(packed),
        "trained": len(_keys(events, "trained")),
        "left out of steps, rollouts": len(left_out),
        "dropped with a reason": len(dropped),
        "removed with a reason": len(_keys(events, "removed")),
        "padding dummies": dummies,
        "ledger lines": len(events),
    }
    good = f"all {len(generated)} generated samples were trained exactly once or left out with a reason"
    return found.result(NAME, good, figures)


def _shared_ids(evidence: Evidence, found: Findings) -> set[int]:
    """Rollout ids that several slots carry: their samples can not be told apart.

    `identity` is red about those that several stored slots carry; about the others nobody is but this.
    """
    stored, slots = defaultdict(set), defaultdict(set)
    for it in evidence.iterations:
        for s in it.rollouts:
            stored[s.rollout_id].add(s.index)
        for e in it.events("generated"):
            slots[e["rollout_id"]].add(e["index"])
    shared = {rollout for rollout in stored.keys() | slots.keys() if len(stored[rollout] | slots[rollout]) > 1}
    for rollout in sorted(r for r in shared if len(stored[r]) < 2):
        of = sorted(stored[rollout] | slots[rollout])
        found.add(f"rollout {rollout} was generated or stored in slots {of}: an id stands for one rollout", rollout)
    return shared


def _name(key: Key) -> str:
    return f"(rollout {key[0]}, sibling {key[1]})"


def _keys(events: Iterable[Event], name: str) -> list[Key]:
    return [(e["rollout_id"], e["sibling"]) for e in events if e["event"] == name]


def _once(keys: list[Key], verb: str, found: Findings) -> set[Key]:
    for key, times in sorted(Counter(keys).items()):
        if times > 1:
            found.add(f"sample {_name(key)} was {verb} {times} times", key)
    return set(keys)


def _reasons(events: list[Event]) -> dict[tuple[str, int], str]:
    """Reason of every dropped rollout, by its id or (where it has none yet) its slot."""
    reasons = {}
    for e in events:
        if e["event"] == "dropped":
            kind = ("rollout", e["rollout_id"]) if e.get("rollout_id") is not None else ("index", e["index"])
            reasons[kind] = e["reason"]
    return reasons


def _flow(
    before: str, source: set[Key], after: str, target: set[Key], excused: Callable[[Key], bool], found: Findings
) -> None:
    """What went in came out, but for what has a reason; and nothing came out that did not go in."""
    for key in sorted(source - target):
        if not excused(key):
            found.add(f"sample {_name(key)} was {before} and not {after}, and no reason is given", key)
    for key in sorted(target - source):
        found.add(f"sample {_name(key)} was {after} and not {before}", key)


def _same_tokens(evidence: Evidence, events: list[Event], found: Findings) -> None:
    """What is stored is what was generated, token by token."""
    digests = {(e["rollout_id"], e["sibling"]): e.get("tokens_digest") for e in events if e["event"] == "generated"}
    for it in evidence.iterations:
        for s in (*it.rollouts, *it.normalised):
            if digests.get(s.key) not in (None, sha256(canonical_json(s.tokens))):
                found.add(f"sample {_name(s.key)} is stored with other tokens than were generated", s.key)


def _same_status(evidence: Evidence, events: list[Event], found: Findings) -> None:
    """A sample is stored in the state in which its generation ended: an aborted one never becomes a good one."""
    states = {(e["rollout_id"], e["sibling"]): e.get("status") for e in events if e["event"] == "generated"}
    for it in evidence.iterations:
        for s in it.rollouts:
            if states.get(s.key) not in (None, s.status):
                found.add(f"sample {_name(s.key)} was generated as {states[s.key]} and stored as {s.status}", s.key)


def _compare_normalised(evidence: Evidence, to_train: set[int], found: Findings) -> None:
    """The normalisation's own lines: each rollout that may be trained once, and none that is not stored."""
    stored = {s.rollout_id for it in evidence.iterations for s in it.normalised}
    lines = Counter(e["rollout_id"] for it in evidence.iterations for e in it.events("normalised"))
    for rollout in sorted(to_train):
        if lines[rollout] != 1:
            found.add(f"rollout {rollout} was normalised {lines[rollout]} times, not once", rollout)
    for rollout in sorted(set(lines) - stored):
        found.add(f"rollout {rollout} was normalised and is not stored", rollout)


def _packed(evidence: Evidence, shared: set[int], found: Findings) -> tuple[set[Key], dict[int, str]]:
    """Samples that the step plans hold, and the rollouts that they leave out for good, with the reason.

    A rollout that one iteration carries over is not left out: the next one, where it is on record, answers for it.
    """
    keys: list[Key] = []
    left_out: dict[int, str] = {}
    planned = {it.iteration for it in evidence.iterations}
    for it in evidence.iterations:
        keys += [(s.rollout_id, s.sibling) for step in it.plan.steps for s in step.samples()]
        _same_reasons(it, found)
        for o in it.plan.left_out:
            if not o.reason:
                found.add(f"rollout {o.rollout_id} is left out of the steps without a reason", o.rollout_id)
            if o.reason != "carried" or it.iteration + 1 not in planned:
                left_out[o.rollout_id] = o.reason
    packed = _once([k for k in keys if k[0] not in shared], "packed", found)
    for rollout in sorted({k[0] for k in packed} & set(left_out)):
        found.add(f"rollout {rollout} is in a step and also left out ({left_out[rollout]})", rollout)
    return packed, left_out


def _same_reasons(it: IterationEvidence, found: Findings) -> None:
    """The training stage's own lines about what it leaves out, where it wrote any, are those of the plan."""
    lines, planned = _reason_of(it.events("left_out")), {o.rollout_id: o.reason for o in it.plan.left_out}
    for rollout in sorted(r for r in lines.keys() | planned.keys() if lines and lines.get(r) != planned.get(r)):
        found.add(
            f"rollout {rollout} is left out as {planned.get(rollout)} by the plan of iteration {it.iteration}, "
            f"as {lines.get(rollout)} by its ledger",
            rollout,
        )


def _reason_of(events: Iterable[Event]) -> dict[int, str]:
    return {e["rollout_id"]: e["reason"] for e in events}


def _compare_trained(evidence: Evidence, packed: set[Key], events: list[Event], found: Findings) -> None:
    """The trainer ranks' own lines against the plans: same samples, same place, same weight, once."""
    trained = _once(_keys(events, "trained"), "trained", found)
    _flow("packed", packed, "trained", trained, lambda _: False, found)
    for it in evidence.iterations:
        planned = {key: place for key, place in _places(it.plan).items() if key in packed}
        for e in it.events("trained"):
            key = (e["rollout_id"], e["sibling"])
            place = (e["step"], e["rank"], e["micro_batch"], e["row"], e["weight"])
            if key in planned and place != planned[key]:
                found.add(
                    f"sample {_name(key)} was planned for (step, rank, micro-batch, row, weight) {planned[key]} "
                    f"and trained at {place}",
                    key,
                )


def _places(plan: TrainingPlan) -> Mapping[Key, tuple]:
    return {
        (s.rollout_id, s.sibling): (step.index, rank, number, s.row, s.weight)
        for step in plan.steps
        for rank, batches in enumerate(step.ranks)
        for number, batch in enumerate(batches)
        for s in batch.samples
        if not s.dummy
    }
