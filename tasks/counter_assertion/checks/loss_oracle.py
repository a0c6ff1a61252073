"""Loss terms and UNCLIPPED gradient of a step against an independent reference that shares no code with the product.

The reference is the plain transformers model with the downloaded weights, in float64; advantages and denominators are
rebuilt from raw rewards and masks. Gradients are compared, not loss curves: Adam hides a wrong scale, and with whole
groups in a step the loss is 0 by construction while its gradient is not.
"""

from typing import Any

import numpy as np
from safetensors.torch import load

from infra.records.training import StepResult
from infra.records.verdict import CheckResult
from infra.scenario.model import Scenario
from tasks.counter_assertion.advantages import SHIPPED
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, trainable
from tasks.counter_assertion.findings import Findings
from tasks.counter_assertion.oracle.compare import compare
from tasks.counter_assertion.oracle.expected import OracleBatch, step_batch
from tasks.counter_assertion.oracle.reference import Reference, compute

NAME = "loss-oracle"
NEEDS = ("rollouts", "plan", "trained", "trainer_log_probs", "model")
TERM_TOLERANCE = 1e-5  # of a rollout's |token losses|: sums in float32, each rounded at 6e-8
LOSS_TOLERANCE = 1e-6  # of sum |terms| / G'; the loss itself may be 0 by construction
FLOAT32_BOUND = 1e-4  # least bound where the reference itself has to be float32 (more than 200 M parameters)


def check(evidence: Evidence) -> CheckResult:
    """The first step of the run: there the weights are the downloaded ones and every ratio is 1."""
    first = next((i for i in evidence.iterations if i.iteration == 0), None)
    if reason := _cannot(evidence, first):
        return CheckResult(name=NAME, status="not run", reason=reason)
    assert first is not None and evidence.model is not None
    scenario, result, planned = evidence.scenario, first.trained.steps[0], first.plan.steps[0]
    batch = step_batch(
        first.rollouts,
        planned.rollout_ids,
        scenario,
        of_iteration={rollout for step in first.plan.steps for rollout in step.rollout_ids},
        engine=first.engine_log_probs if scenario.training.uses_engine_log_probs else None,
    )
    reference = compute(
        evidence.model.path,
        evidence.model.parameters,
        batch,
        scenario.rollout.temperature,
        scenario.training,
    )
    found = Findings()
    figures: dict[str, Any] = {"dtype": reference.dtype, "samples": len(batch.samples), "rollouts": batch.rollouts}
    figures |= _terms(result, reference, batch, found)
    figures |= _gradient(evidence, result, reference, found)
    figures |= _log_probs(first, reference, scenario.checks.log_prob_tolerance, found)
    good = (
        f"loss terms of {batch.rollouts} rollouts and the unclipped gradient equal an independent {reference.dtype} "
        f"computation (largest relative gradient error {figures['largest gradient error']:.2g})"
    )
    return found.result(NAME, good, figures)


def _cannot(evidence: Evidence, first: IterationEvidence | None) -> str | None:
    """Why this run can not be compared, None where it can."""
    scenario: Scenario = evidence.scenario
    training = scenario.training
    if first is None or not first.trained.steps:
        return "the first step of the run is not on record"
    if first.trained.steps[0].gradient is None:
        return "no gradient of the first step was published (training.publish_gradients)"
    if scenario.normalization.reward_post_process not in SHIPPED:
        return f"no independent form of {scenario.normalization.reward_post_process} is known"
    if training.estimator == "gae":
        return "no independent form of the estimator gae: the values of a critic are not on record"
    if training.uses_engine_log_probs:
        return _engine_log_probs_missing(first)
    return None


def _engine_log_probs_missing(first: IterationEvidence) -> str | None:
    known = first.parts.get("engine_log_probs", {})
    missing = [
        s.key for s in trainable(first.rollouts) if s.trained_tokens and len(known.get(s.key, ())) != s.response_length
    ]
    return f"the engine's log-probs of (rollout, sibling) {missing[:5]} are not on record" if missing else None


def _terms(result: StepResult, reference: Reference, batch: OracleBatch, found: Findings) -> dict[str, Any]:
    sizes, worst = reference.sizes, 0.0
    for rollout, expected in sorted(reference.terms.items()):
        got = result.rollout_terms.get(rollout, 0.0)
        worst = max(worst, abs(got - expected))
        if not abs(got - expected) <= TERM_TOLERANCE * max(sizes[rollout], abs(expected)):
            found.add(f"rollout {rollout} has loss term {got:.6g}, the reference {expected:.6g}", rollout)
    for rollout in sorted(r for r, term in result.rollout_terms.items() if term and r not in reference.terms):
        found.add(f"rollout {rollout} has a loss term and no trainable sample", rollout)
    rollouts = max(batch.rollouts, 1)
    loss = sum(reference.terms.values()) / rollouts
    allowed = LOSS_TOLERANCE * max(sum(sizes.values()) / rollouts, 1e-30)
    if not abs(result.loss - loss) <= allowed:
        found.add(f"the loss is {result.loss:.8g}, the reference {loss:.8g} (allowed {allowed:.2g})", result.step)
    return {"largest loss term error": worst, "loss": result.loss, "reference loss": loss}


def _gradient(evidence: Evidence, result: StepResult, reference: Reference, found: Findings) -> dict[str, Any]:
    assert result.gradient is not None
    limit = evidence.scenario.checks.gradient_tolerance
    limit = limit if reference.dtype == "float64" else max(limit, FLOAT32_BOUND)
    error = compare(load(evidence.store.read(result.gradient)), reference.gradient)
    for name in error.lacking:
        found.add(f"the gradient of {name} is on one side only", name)
    for kind, value in sorted(error.by_kind.items(), key=lambda item: -item[1]):
        if not value <= limit:
            found.add(f"the gradient of {kind} is off by {value:.3g} (relative, allowed {limit:g})", kind)
    norm_error = abs(result.gradient_norm - reference.norm) / reference.norm if reference.norm else result.gradient_norm
    if not norm_error <= limit:
        found.add(f"the gradient norm is {result.gradient_norm:.6g}, the reference {reference.norm:.6g}", result.step)
    return {
        "largest gradient error": error.largest,
        "worst tensor": error.worst_tensor,
        "worst tensor's error": error.worst_error,
        "allowed": limit,
        "gradient error by kind": error.by_kind,
        "gradient norm": result.gradient_norm,
        "reference norm": reference.norm,
    }


def _log_probs(first: IterationEvidence, reference: Reference, limit: float, found: Findings) -> dict[str, Any]:
    """The trainer's log-probs before the step against the reference's, over trained tokens."""
    masks = {s.key: np.asarray(s.loss_mask, dtype=bool) for s in first.rollouts}
    worst = 0.0
    for key, expected in sorted(reference.log_probs.items()):
        got = first.trainer_log_probs.get(key)
        if got is None or len(got) != len(masks[key]):
            found.add(f"rollout {key[0]} sibling {key[1]} has no trainer log-probs of its length", key[0])
            continue
        difference = float(np.abs(got[masks[key]] - expected).max())
        worst = max(worst, difference)
        if not difference <= limit:
            found.add(f"rollout {key[0]} sibling {key[1]}: trainer log-probs are off by {difference:.3g}", key[0])
    return {"largest log-prob error": worst}
