"""One step of the trainer beside the reference's: loss terms, gradient, ratios and log-probs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.torch import load

from infra.records.training import StepResult
from tasks.counter_assertion.bounds import Bounds
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, LogProbs, StoredSample
from tasks.counter_assertion.findings import Findings
from tasks.counter_assertion.oracle.compare import common_factor, compare
from tasks.counter_assertion.oracle.expected import OracleBatch
from tasks.counter_assertion.oracle.reference import Reference

KL_ROUNDING = 3e-7  # of the KL coefficient: k2 and k3 take numbers near 1 from each other, in float32
FLOAT32_BOUND = 1e-4  # least bound where the reference itself has to be float32 (more than 200 M parameters)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One step with all that the reference needs of it; iteration and step number as in the records.

    Args:
        raw: samples with raw rewards, of the iteration and, for rollouts that it took over, of the one before.
        engine: the engine's log-probs of these samples.
    """

    it: IterationEvidence
    result: StepResult
    raw: tuple[StoredSample, ...]
    engine: LogProbs

    @property
    def first(self) -> bool:
        return self.it.iteration == self.result.step == 0

    @property
    def where(self) -> str:
        return f"step {self.result.step} of iteration {self.it.iteration}"


def terms(
    compared: Compared, reference: Reference, batch: OracleBatch, kl_coefficient: float, bounds: Bounds, found: Findings
) -> dict[str, Any]:
    """Each rollout's loss term, and the loss. What is off goes to `found`, here and below."""
    sizes, worst, result = reference.sizes, 0.0, compared.result
    rounding = KL_ROUNDING * kl_coefficient
    for rollout, expected in sorted(reference.terms.items()):
        got = result.rollout_terms.get(rollout, 0.0)
        worst = max(worst, abs(got - expected))
        if not abs(got - expected) <= bounds.term * max(sizes[rollout], abs(expected)) + rounding:
            found.add(f"rollout {rollout} has loss term {got:.6g}, the reference {expected:.6g}", rollout)
    for rollout in sorted(r for r, term in result.rollout_terms.items() if term and r not in reference.terms):
        found.add(f"rollout {rollout} has a loss term and no trainable sample", rollout)
    rollouts = max(batch.rollouts, 1)
    loss = sum(reference.terms.values()) / rollouts
    tolerance = bounds.term if result.step else bounds.first_loss
    allowed = tolerance * max(sum(sizes.values()) / rollouts, 1e-30) + rounding
    if not abs(result.loss - loss) <= allowed:
        found.add(f"the loss is {result.loss:.8g}, the reference {loss:.8g} (allowed {allowed:.2g})", result.step)
    return {"largest loss term error": worst, "loss": result.loss, "reference loss": loss}


def gradient(
    evidence: Evidence,
    result: StepResult,
    reference: Reference,
    bounds: Bounds,
    in_own_type: Callable[[], Reference],
    found: Findings,
) -> dict[str, Any]:
    """Every tensor of the published gradient, and its norm.

    Args:
        in_own_type: the reference in the type that was trained in, asked only where rounding may be the difference.
    """
    assert result.gradient is not None
    limit = bounds.gradient if reference.dtype == "float64" else max(bounds.gradient, FLOAT32_BOUND)
    published = load(evidence.store.read(result.gradient))
    error = compare(published, reference.gradient)
    norm_error = _relative(result.gradient_norm, reference.norm)
    figures = {
        "largest gradient error": error.largest,
        "worst tensor": error.worst_tensor,
        "worst tensor's error": error.worst_error,
        "allowed": limit,
        "gradient error by kind": error.by_kind,
        "gradient norm": result.gradient_norm,
        "reference norm": reference.norm,
    }
    other = sorted(n for n, g in reference.gradient.items() if n in published and published[n].shape != g.shape)
    if other:
        shapes = f"{list(published[other[0]].shape)}, here {list(reference.gradient[other[0]].shape)}"
        found.add(f"the gradient is of another model than this: {other[0]} is {shapes}", other[0])
        return figures
    rounding, norm_rounding = dict.fromkeys(error.by_kind, 0.0), 0.0
    if reference.dtype == "float64" and limit < max(error.largest, norm_error) <= bounds.rounding_cap:
        rounded = in_own_type()
        rounding = compare(rounded.gradient, reference.gradient).by_kind
        norm_rounding = _relative(rounded.norm, reference.norm)
        figures[f"rounding of this batch in {rounded.dtype}"] = max(rounding.values())
    for name in error.lacking:
        found.add(f"the gradient of {name} is on one side only", name)
    allowed = {
        kind: max(limit, min(bounds.rounding_factor * rounding[kind], bounds.rounding_cap)) for kind in error.by_kind
    }
    off = {kind: value for kind, value in error.by_kind.items() if not value <= allowed[kind]}
    if off and (factor := common_factor(published, reference.gradient)) is not None:
        whole = "which no single sample explains: look for a scale or a denominator"
        found.add(f"the whole gradient is {factor:.6g} times the reference's, {whole}", result.step)
    for kind, value in sorted(off.items(), key=lambda item: -item[1]):
        found.add(f"the gradient of {kind} is off by {value:.3g} (relative, allowed {allowed[kind]:.2g})", kind)
    if not norm_error <= max(limit, min(bounds.rounding_factor * norm_rounding, bounds.rounding_cap)):
        found.add(f"the gradient norm is {result.gradient_norm:.6g}, the reference {reference.norm:.6g}", result.step)
    return figures


def _relative(got: float, expected: float) -> float:
    return abs(got - expected) / expected if expected else got


def ratio(result: StepResult, reference: Reference, limit: float, found: Findings) -> dict[str, Any]:
    """The step's largest ratio, as the trainer says and as the reference has it."""
    got, expected = result.max_ratio_error, reference.ratio_error
    if not abs(got - expected) <= limit * (1 + expected):
        found.add(f"ratios leave 1 by up to {got:.6g}, the reference's by {expected:.6g}", result.step)
    return {"ratio error": expected}


def log_probs(compared: Compared, reference: Reference, limit: float, found: Findings) -> dict[str, Any]:
    """The trainer's log-probs before the step against the reference's, over trained tokens."""
    masks = {s.key: np.asarray(s.loss_mask, dtype=bool) for s in compared.raw}
    worst = 0.0
    for key, expected in sorted(reference.log_probs.items()):
        got = compared.it.trainer_log_probs.get(key)
        if got is None or len(got) != len(masks[key]):
            found.add(f"rollout {key[0]} sibling {key[1]} has no trainer log-probs of its length", key[0])
            continue
        difference = float(np.abs(got[masks[key]] - expected).max())
        worst = max(worst, difference)
        if not difference <= limit:
            found.add(f"rollout {key[0]} sibling {key[1]}: trainer log-probs are off by {difference:.3g}", key[0])
    return {"largest log-prob error": worst}
