"""Loss terms and UNCLIPPED gradient of steps against an independent reference that shares no code with the product.

The reference is the plain transformers model in float64, with the downloaded weights in the run's first step and with
the published weights before a later one; advantages and denominators are rebuilt from raw rewards and masks. Gradients
are compared, not loss curves: Adam hides a wrong scale, and with whole groups in a step the loss is 0 by construction
while its gradient is not. In a later step ratios leave 1: only there clips, old log-probs and a KL's reference show.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load

from infra.errors import StoreUnavailable
from infra.records.verdict import CheckResult
from infra.scenario.model import Scenario
from tasks.counter_assertion.advantages import SHIPPED
from tasks.counter_assertion.bounds import bounds_of
from tasks.counter_assertion.evidence import Evidence, Key, LogProbs, StoredSample, trainable
from tasks.counter_assertion.findings import SHOWN, Findings
from tasks.counter_assertion.oracle.beside import Compared, gradient, log_probs, ratio, terms
from tasks.counter_assertion.oracle.expected import OracleBatch, step_batch
from tasks.counter_assertion.oracle.reference import Before, OtherModel, Reference, compute
from tasks.counter_assertion.oracle.token_advantages import trained_values

NAME = "loss-oracle"
NEEDS = ("rollouts", "plan", "trained", "trainer_log_probs", "model")
MOST_STEPS = 8  # of the steps with a published gradient, from the first on


@dataclass
class Outcome:
    """What the comparison of the steps came to, so far."""

    found: Findings = field(default_factory=Findings)
    steps: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def check(evidence: Evidence) -> CheckResult:
    """Every step whose gradient is on record, as far as MOST_STEPS; the others are named."""
    if reason := _cannot(evidence.scenario):
        return CheckResult(name=NAME, status="not run", reason=reason)
    outcome = Outcome()
    try:
        for number, compared in enumerate(_published(evidence)):
            if number < MOST_STEPS:
                _compare(evidence, compared, outcome)
            else:
                outcome.left_out[compared.where] = f"behind the first {MOST_STEPS} of the published steps"
    except StoreUnavailable as cause:
        return CheckResult(name=NAME, status="infra", reason=f"its evidence can not be read: {cause}")
    if not outcome.steps and not outcome.found.words:
        reason = "; ".join(f"{where}: {why}" for where, why in outcome.left_out.items())
        none = "no gradient was published (training.publish_gradients)"
        return CheckResult(name=NAME, status="not run", reason=reason or none)
    good = _good(outcome) if outcome.steps else ""
    return outcome.found.result(NAME, good, _figures(outcome))


def _good(outcome: Outcome) -> str:
    steps, named = outcome.steps, list(outcome.left_out)
    later = [s["ratio error"] for s in steps if s["ratio error"] > 0]
    moved = f", in {len(later)} of them with ratios up to {max(later):.2g} away from 1," if later else ""
    worst = max(s["largest gradient error"] for s in steps)
    what = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return (
        f"loss terms and the unclipped gradient of {what}{moved} equal an independent {steps[0]['dtype']} computation "
        f"(largest relative gradient error {worst:.2g})"
    ) + (f"; not compared: {', '.join(named[:SHOWN])}{more}" if named else "")


def _figures(outcome: Outcome) -> dict[str, Any]:
    """Those of the worst step, and one line for each."""
    worst = max(outcome.steps, key=lambda s: s["largest gradient error"], default={})
    brief = ("iteration", "step", "rollouts", "ratio error", "largest gradient error", "largest loss term error")
    figures = {**worst, "steps compared": [{name: s[name] for name in brief} for s in outcome.steps]}
    return {**figures, "not compared": outcome.left_out} if outcome.left_out else figures


def _published(evidence: Evidence) -> Iterator[Compared]:
    before: tuple[StoredSample, ...] = ()
    engine: LogProbs = {}
    for it in evidence.iterations:
        known = {**engine, **it.parts.get("engine_log_probs", {})}
        for result in it.trained.steps:
            if result.gradient is not None:
                yield Compared(it=it, result=result, raw=(*before, *it.rollouts), engine=known)
        before, engine = it.rollouts, it.parts.get("engine_log_probs", {})


def _compare(evidence: Evidence, compared: Compared, outcome: Outcome) -> None:
    assert evidence.model is not None
    scenario, it, result = evidence.scenario, compared.it, compared.result
    planned = next((s for s in it.plan.steps if s.index == result.step), None)
    if planned is None:
        outcome.found.add(f"{compared.where} is in no plan", it.iteration, result.step)
        return
    if reason := _cannot_step(scenario, compared):
        outcome.left_out[compared.where] = reason
        return
    batch = step_batch(
        compared.raw,
        planned.rollout_ids,
        scenario,
        of_iteration={rollout for step in it.plan.steps for rollout in step.rollout_ids},
        engine=compared.engine if scenario.training.uses_engine_log_probs else None,
    )
    if result.step and (missing := _without_old_log_probs(compared, batch)):
        outcome.found.add(f"{compared.where}: rollouts {missing} have no trainer log-probs of their length", *missing)
        return
    model, before = evidence.model, _before(evidence, compared)
    bounds = bounds_of(scenario.checks, it.trained.dtype)
    own_type = torch.bfloat16 if it.trained.dtype == "bfloat16" else torch.float32

    def computed(dtype: torch.dtype | None = None) -> Reference:
        temperature, training = scenario.rollout.temperature, scenario.training
        return compute(
            model.path, model.parameters, batch, temperature, training, before, dtype=dtype, edge=bounds.edge
        )

    try:
        reference = computed()
    except OtherModel as other:
        outcome.found.add(f"{compared.where}: {other.message}", *other.ids)
        return
    if reference.tokens_at_a_clip:
        outcome.left_out[compared.where] = f"{reference.tokens_at_a_clip} tokens are on the edge of a clip"
        return
    figures = {"iteration": it.iteration, "step": result.step, "dtype": reference.dtype}
    figures |= {"samples": len(batch.samples), "rollouts": batch.rollouts}
    found = Findings()
    figures |= terms(compared, reference, batch, scenario.training.kl_coefficient, bounds, found)
    figures |= gradient(evidence, result, reference, bounds, lambda: computed(own_type), found)
    figures |= ratio(result, reference, bounds.ratio, found)
    if result.step == 0:
        figures |= log_probs(compared, reference, bounds.log_prob, found)
    for words in found.words:
        outcome.found.add(f"{compared.where}: {words}")
    outcome.found.add_ids(found.ids)
    outcome.steps.append(figures)


def _before(evidence: Evidence, compared: Compared) -> Before | None:
    weights = compared.result.weights_before
    if weights is None:
        return None
    old = compared.it.trainer_log_probs if compared.result.step else None
    return Before(weights=load(evidence.store.read(weights)), old=old)


def _cannot(scenario: Scenario) -> str | None:
    """Why no step of this run can be compared, None where one can."""
    if scenario.normalization.reward_post_process not in SHIPPED:
        return f"no independent form of {scenario.normalization.reward_post_process} is known"
    return None


def _cannot_step(scenario: Scenario, compared: Compared) -> str | None:
    """Why this step can not be compared, None where it can."""
    if not compared.first and compared.result.weights_before is None:
        return "the weights before it are not on record"
    if compared.it.iteration and scenario.training.kl_reward_coefficient:
        return "no independent form of a KL in the rewards after the first iteration"
    times = Counter(s.key for s in trainable(compared.raw))
    if shared := sorted(key for key, count in times.items() if count > 1):
        return f"samples share the (rollout, sibling) {shared[:5]}, so nobody can tell them apart"
    if scenario.training.estimator == "gae" and (missing := _without_values(compared)):
        return f"the values that gae takes of (rollout, sibling) {missing[:5]} are not on record"
    if scenario.training.uses_engine_log_probs:
        return _engine_log_probs_missing(compared)
    return None


def _without_values(compared: Compared) -> list[Key]:
    samples = [s for s in trainable(compared.raw) if s.trained_tokens]
    return [s.key for s in samples if len(trained_values(s)) != s.trained_tokens]


def _without_old_log_probs(compared: Compared, batch: OracleBatch) -> list[int]:
    """Rollouts of a later step of which the log-probs from before the iteration's first step are not on record."""
    known = compared.it.trainer_log_probs
    trained = [s for s in batch.samples if s.trained_positions]
    return sorted({s.rollout_id for s in trained if len(known.get((s.rollout_id, s.sibling), ())) != s.response_length})


def _engine_log_probs_missing(compared: Compared) -> str | None:
    known = compared.engine
    missing = [
        s.key for s in trainable(compared.raw) if s.trained_tokens and len(known.get(s.key, ())) != s.response_length
    ]
    return f"the engine's log-probs of (rollout, sibling) {missing[:5]} are not on record" if missing else None
