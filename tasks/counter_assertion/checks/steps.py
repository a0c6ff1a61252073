"""The step plan: exactly G whole rollouts a step, counted in rollouts and not in samples, under the token cap."""

from infra.records.plan import MicroBatch, Step
from infra.records.verdict import CheckResult
from infra.scenario.model import Scenario
from infra.scenario.training import Training
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, StoredSample, trainable
from tasks.counter_assertion.findings import Findings

NAME = "steps"
NEEDS = ("normalised", "plan")
WAITING = ("trailing", "carried")  # left out only because the last step was not full


def check(evidence: Evidence) -> CheckResult:
    """Recompute from the table what the plan of every iteration has to be, as far as the contract fixes it."""
    found, steps, rule = Findings(), 0, evidence.scenario.training
    before: IterationEvidence | None = None
    for it in evidence.iterations:
        _carried_over(before, it, found)
        _left_over(it, evidence.scenario, found)
        before = it
        steps += len(it.plan.steps)
        _whole_rollouts(it, rule.global_batch_size, found)
        _step_count(it, rule.global_batch_size, found)
        _left_out_truly(it, found)
        for step in it.plan.steps:
            _layout(it, step, rule, found)
    figures = {"steps": steps, "rollouts a step": rule.global_batch_size, "ranks": rule.data_parallel}
    good = f"{steps} steps of exactly {rule.global_batch_size} whole rollouts each, micro-batches under the cap"
    return found.result(NAME, good, figures)


def _whole_rollouts(it: IterationEvidence, size: int, found: Findings) -> None:
    where, home = f"iteration {it.iteration}", {}
    siblings: dict[int, set[int]] = {}
    for s in trainable(it.normalised):
        siblings.setdefault(s.rollout_id, set()).add(s.sibling)
    for step in it.plan.steps:
        held: dict[int, set[int]] = {}
        for p in step.samples():
            held.setdefault(p.rollout_id, set()).add(p.sibling)
        if len(set(step.rollout_ids)) != size or len(step.rollout_ids) != size:
            found.add(f"step {step.index} of {where} has {len(set(step.rollout_ids))} rollouts, not {size}", step.index)
        # A fully masked or removed rollout keeps its place in the step and need not be run.
        idle = {o.rollout_id for o in it.plan.left_out} & set(step.rollout_ids)
        if set(held) | idle != set(step.rollout_ids):
            odd = sorted((set(held) | idle) ^ set(step.rollout_ids))
            found.add(f"step {step.index} of {where} names other rollouts than its micro-batches hold: {odd}", *odd)
        for rollout, numbers in sorted(held.items()):
            if home.setdefault(rollout, step.index) != step.index:
                found.add(f"rollout {rollout} of {where} is split over steps {home[rollout]} and {step.index}", rollout)
            elif numbers != siblings.get(rollout, set()):
                due = sorted(siblings.get(rollout, set()))
                found.add(
                    f"rollout {rollout} of {where} has siblings {due}, its step {sorted(numbers)}",
                    rollout,
                )


def _step_count(it: IterationEvidence, size: int, found: Findings) -> None:
    """floor(rollouts / G) steps, filled in the order in which rollouts first occur by slot."""
    placed = {r for step in it.plan.steps for r in step.rollout_ids}
    out = {o.rollout_id for o in it.plan.left_out if not o.reason.startswith(WAITING)} - placed
    ordered = dict.fromkeys(s.rollout_id for s in sorted(it.normalised, key=lambda s: s.index))
    offered = [r for r in ordered if r not in out]
    steps, where = len(it.plan.steps), f"iteration {it.iteration}"
    if steps != len(offered) // size:
        found.add(
            f"{where} has {steps} steps; {len(offered)} rollouts, {size} a step, make {len(offered) // size}",
            it.iteration,
        )
        return
    for number, step in enumerate(it.plan.steps):
        due = offered[number * size : (number + 1) * size]
        if set(step.rollout_ids) != set(due):
            odd = sorted(set(step.rollout_ids) ^ set(due))
            found.add(f"step {step.index} of {where} should take the rollouts {due}; it differs in {odd}", *odd)


def _carried_over(before: IterationEvidence | None, it: IterationEvidence, found: Findings) -> None:
    """What the iteration before carries over is in this one's table, as it was, and nothing else is."""
    taken = {s.key: s for s in it.normalised if s.iteration != it.iteration}
    if before is None or before.iteration + 1 != it.iteration:
        given = {}
    else:
        carried = {o.rollout_id for o in before.plan.left_out if o.reason == "carried"}
        given = {s.key: s for s in before.normalised if s.rollout_id in carried}
    for key in sorted(taken.keys() | given.keys()):
        if taken.get(key) == given.get(key):
            continue
        if key not in taken:
            what = "was carried over to it and is not in its table"
        else:
            what = "changed on the way into it" if key in given else "is in its table and was not carried over to it"
        found.add(f"iteration {it.iteration}: sample {key} {what}", key[0])


def _left_over(it: IterationEvidence, scenario: Scenario, found: Findings) -> None:
    """What no full step takes is carried over or dropped as the scenario says; the last iteration can only drop."""
    last = it.iteration == scenario.rollout.iterations - 1
    due = "carried" if scenario.training.trailing == "carry" and not last else "trailing"
    for o in it.plan.left_out:
        if o.reason.startswith(WAITING) and not o.reason.startswith(due):
            found.add(
                f"rollout {o.rollout_id} of iteration {it.iteration} is {o.reason}, the scenario asks for {due}",
                o.rollout_id,
            )


def _left_out_truly(it: IterationEvidence, found: Findings) -> None:
    """A reason has to be true: fully masked, removed and aborted are read from the table."""
    of_rollout: dict[int, list[StoredSample]] = {}
    for s in it.normalised:
        of_rollout.setdefault(s.rollout_id, []).append(s)
    truths = {
        "fully masked": lambda samples: not any(any(s.loss_mask) for s in samples if not s.remove_sample),
        "removed": lambda samples: any(s.remove_sample for s in samples),
        "aborted": lambda samples: any(s.status == "aborted" for s in samples),
    }
    for o in it.plan.left_out:
        for reason, true in truths.items():
            if o.reason.startswith(reason) and not true(of_rollout.get(o.rollout_id, [])):
                found.add(f"rollout {o.rollout_id} is left out as {o.reason}, which it is not", o.rollout_id)


def _layout(it: IterationEvidence, step: Step, rule: Training, found: Findings) -> None:
    where = f"step {step.index} of iteration {it.iteration}"
    if len(step.ranks) != rule.data_parallel:
        found.add(f"{where} is spread over {len(step.ranks)} ranks, not {rule.data_parallel}", step.index)
    counts = {len(batches) for batches in step.ranks}
    if len(counts) > 1:
        found.add(f"the ranks of {where} run {sorted(counts)} micro-batches: the counts must be equal", step.index)
    for rank, batches in enumerate(step.ranks):
        for number, batch in enumerate(batches):
            _micro_batch(it, batch, f"micro-batch {number} of rank {rank} in {where}", rule, found)


def _micro_batch(it: IterationEvidence, batch: MicroBatch, where: str, rule: Training, found: Findings) -> None:
    tokens = 0
    for p in batch.samples:
        row = it.normalised[p.row] if 0 <= p.row < len(it.normalised) else None
        if row is None or row.key != (p.rollout_id, p.sibling):
            found.add(f"{where} takes row {p.row} for rollout {p.rollout_id}, which is another sample's", p.rollout_id)
            continue
        tokens += len(row.tokens)
        if p.dummy and p.weight != 0:
            found.add(f"{where} gives a padding dummy the weight {p.weight:.3g}, not 0", p.rollout_id)
    cap = rule.max_tokens_per_gpu * rule.context_parallel if rule.max_tokens_per_gpu else None
    if cap and tokens > cap and len(batch.samples) > 1:
        found.add(f"{where} holds {tokens} tokens in {len(batch.samples)} samples, the cap is {cap}", tokens)
    if rule.micro_batch_size and len(batch.samples) > rule.micro_batch_size:
        found.add(f"{where} holds {len(batch.samples)} samples, not at most {rule.micro_batch_size}")
