"""The same step under permuted samples, another layout or micro-batch size, and merged copies gives the same gradient.

What a shape changes is only the order in which numbers are added: tokens inside a micro-batch, micro-batches into the
gradient buffer, ranks into their sum. In float32 each addition rounds by at most 2**-24 of its result. Over 13 seeds of
`tiny` no parameter group differed by more than 3e-7 to 2.7e-6; in one run whose samples nearly cancelled it was
MEASURED. The bound is ten times the scenario's `checks.gradient_tolerance`: a wrong denominator is off by a third and
more. In bfloat16 a shape changes single activations by their rounding, 2**-9 each, through all layers:
as much as the oracle's own bound there allows for.
"""

from typing import Any

from safetensors.torch import load

from infra.errors import StoreUnavailable
from infra.records.replay import Variant
from infra.records.verdict import CheckResult
from tasks.counter_assertion.bounds import bounds_of
from tasks.counter_assertion.evidence import Evidence, IterationEvidence
from tasks.counter_assertion.findings import Findings
from tasks.counter_assertion.oracle.compare import GradientError, compare

NAME = "invariance"
NEEDS = ()
MEASURED = 8.9e-6
CANCELLING = 10  # two gradients are all there is here: what cancelled in them is not known
AGAINST_THE_RUN = ("permuted", "micro-batches", "data-parallel")


def check(evidence: Evidence) -> CheckResult:
    """Every shape's gradient against the one it has to equal, per kind of parameter over all layers."""
    if damaged := [a for a in evidence.missing(("invariance", "trained")) if a.damaged]:
        return CheckResult(name=NAME, status="infra", reason=damaged[0].reason)
    shaped = evidence.having("trained", "invariance")
    if not shaped or not shaped[0].invariance.variants:
        return CheckResult(name=NAME, status="not run", reason=_why_not(evidence, shaped))
    it = shaped[0]
    record, found = it.invariance, Findings()
    limit, source = _bound(evidence, record.dtype)
    figures: dict[str, Any] = {"iteration": record.iteration, "step": record.step, "allowed": limit, "bound": source}
    errors: dict[str, GradientError] = {}
    try:
        for variant in record.variants:
            errors[variant.name] = _error(evidence, it, variant, found)
    except StoreUnavailable as cause:
        return CheckResult(name=NAME, status="infra", reason=str(cause), figures=figures)
    for variant in record.variants:
        _judge(variant, errors[variant.name], limit, found)
    figures["largest error by shape"] = {name: e.largest for name, e in errors.items()}
    figures["not compared"] = {n.name: n.reason for n in record.not_compared}
    largest = max(e.largest for e in errors.values())
    good = (
        f"{len(errors)} other shapes of step {record.step} ({', '.join(errors)}) give the same gradient (largest "
        f"relative difference {largest:.2g}, allowed {limit:g})"
    )
    if record.not_compared:
        good += "; not compared: " + "; ".join(f"{n.name} ({n.reason})" for n in record.not_compared)
    return found.result(NAME, good, figures)


def _why_not(evidence: Evidence, shaped: list[IterationEvidence]) -> str:
    if not evidence.scenario.checks.invariance:
        return "the scenario says checks.invariance: false"
    if shaped:
        return "; ".join(f"{n.name}: {n.reason}" for n in shaped[0].invariance.not_compared)
    return "no step with a published gradient other than 0 was computed again in other shapes"


def _bound(evidence: Evidence, dtype: str) -> tuple[float, str]:
    tolerance = bounds_of(evidence.scenario.checks, dtype).gradient
    if dtype == "float32":
        said = f"{CANCELLING} times checks.gradient_tolerance"
        return CANCELLING * tolerance, f"{said}; order of float32 additions, measured at most {MEASURED:g}"
    return tolerance, f"rounding of single activations in {dtype}"


def _error(evidence: Evidence, it: IterationEvidence, variant: Variant, found: Findings) -> GradientError:
    own = next((s.gradient for s in it.trained.steps if s.step == it.invariance.step), None)
    if variant.name in AGAINST_THE_RUN and (own is None or variant.against.sha256 != own.sha256):
        found.add(f"{variant.name} was not compared with the run's own gradient of step {it.invariance.step}")
    return compare(load(evidence.store.read(variant.gradient)), load(evidence.store.read(variant.against)))


def _judge(variant: Variant, error: GradientError, limit: float, found: Findings) -> None:
    for name in error.lacking:
        found.add(f"{variant.name}: the gradient of {name} is on one side only", name)
    for kind, value in sorted(error.by_kind.items(), key=lambda item: -item[1]):
        if not value <= limit:
            found.add(
                f"{variant.name} ({variant.change}): the gradient of {kind} is off by {value:.3g} (relative, allowed "
                f"{limit:g})",
                kind,
            )
