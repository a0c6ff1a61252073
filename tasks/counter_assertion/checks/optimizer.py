"""Every step moves the weights as Adam has to by the step's published gradient: faults behind the gradient show here.

In float64, with g the gradient scaled down to a norm of `clip_grad` at most, and t counting the steps of the run:

    m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2
    w' = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + 1e-8) + decay w)

Kingma and Ba 2015, algorithm 1; the decay is decoupled (Loshchilov and Hutter 2019, algorithm 2) and spares vectors.
Each step starts from its published weights, so that errors do not add up; the moments are the reference's own from the
run's first step on. A shard that no rank steps, moments that were lost when memory was handed over or a run was
resumed, and a rate that is not the scenario's, whatever the trainer says it was, are right in every gradient and wrong
here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from safetensors.torch import load
from torch import Tensor

from infra.errors import StoreUnavailable
from infra.records.verdict import CheckResult
from infra.scenario.training import Training
from tasks.counter_assertion.evidence import Evidence
from tasks.counter_assertion.findings import Findings
from tasks.counter_assertion.oracle.reference import model_of

NAME = "optimizer"
NEEDS = ("trained", "model")
EPSILON = 1e-8
TOLERANCE = 1e-3  # of the learning rate, which is what Adam moves a weight by
ROUNDING = 4 * torch.finfo(torch.float32).eps  # of the weight, which is kept in float32
MOST_PARAMETERS = 50_000_000  # float64 weights and moments of more do not belong beside a run

Weights = Mapping[str, Tensor]


def check(evidence: Evidence) -> CheckResult:
    """All steps from the run's first on, as far as gradients and the weights after them are published."""
    if reason := _cannot(evidence):
        return CheckResult(name=NAME, status="not run", reason=reason)
    found, adam, worst, steps = Findings(), Adam(evidence.scenario.training), 0.0, 0
    try:
        for where, gradient, before, after in _moves(evidence):
            expected = adam.step(before, gradient)
            worst = max(worst, _compare(where, before, after, expected, adam.training.learning_rate, found))
            steps += 1
    except StoreUnavailable as cause:
        return CheckResult(name=NAME, status="infra", reason=f"its evidence can not be read: {cause}")
    if not steps:
        needed = "of no step are the gradient and the weights before and after it published"
        return CheckResult(name=NAME, status="not run", reason=f"{needed} (training.publish_gradients: all)")
    what = "1 step" if steps == 1 else f"{steps} steps"
    good = f"{what} moved the weights as Adam does in float64 (largest difference {worst:.2g} of the learning rate)"
    return found.result(NAME, good, {"steps": steps, "largest difference in learning rates": worst})


def _cannot(evidence: Evidence) -> str | None:
    assert evidence.model is not None
    if evidence.model.parameters > MOST_PARAMETERS:
        return f"the model has more than {MOST_PARAMETERS:,} parameters"
    if others := {it.trained.dtype for it in evidence.iterations} - {"float32"}:
        return f"the weights are on record in {', '.join(sorted(others))}: their rounding is larger than a step"
    return None


def _moves(evidence: Evidence) -> Iterator[tuple[str, Weights, Weights, Weights]]:
    """Gradients of steps with the weights before and after them, from the first on; one without them ends it."""
    assert evidence.model is not None
    steps = [(it.iteration, step) for it in evidence.iterations for step in it.trained.steps]
    there = {it.iteration for it in evidence.iterations}
    before: Weights | None = None
    for (iteration, step), (following, then) in pairwise(steps):
        if step.gradient is None or then.weights_before is None or not there.issuperset(range(iteration, following)):
            return
        if before is None:
            if iteration or step.step or step.weights_before is not None:
                return
            model = model_of(evidence.model.path, torch.float32)
            before = {name: parameter.detach() for name, parameter in model.named_parameters()}
        after = load(evidence.store.read(then.weights_before))
        yield f"step {step.step} of iteration {iteration}", load(evidence.store.read(step.gradient)), before, after
        before = {name: after.get(name, weights) for name, weights in before.items()}


@dataclass
class Adam:
    """The reference: moments of every tensor, and the number of steps."""

    training: Training
    steps: int = 0
    moments: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def step(self, before: Weights, gradient: Weights) -> dict[str, Tensor]:
        """The weights after one step, float64, of the tensors that have a gradient."""
        self.steps += 1
        given, (b1, b2) = self.training, (self.training.adam_beta1, self.training.adam_beta2)
        names = sorted(gradient.keys() & before.keys())  # a head that shares the embedding's weights is no tensor more
        norm = sum(float(gradient[name].double().square().sum()) for name in names) ** 0.5
        scale = min(1.0, given.clip_grad / (norm + 1e-6)) if given.clip_grad else 1.0
        moved: dict[str, Tensor] = {}
        for name in names:
            weights, g = before[name].double(), scale * gradient[name].double()
            mean, square = self.moments.get(name, (torch.zeros_like(g), torch.zeros_like(g)))
            mean, square = b1 * mean + (1 - b1) * g, b2 * square + (1 - b2) * g.square()
            self.moments[name] = mean, square
            direction = mean / (1 - b1**self.steps) / ((square / (1 - b2**self.steps)).sqrt() + EPSILON)
            decay = given.weight_decay if weights.dim() > 1 else 0.0
            moved[name] = weights - given.learning_rate * (direction + decay * weights)
        return moved


def _compare(
    where: str, before: Weights, after: Weights, expected: Weights, learning_rate: float, found: Findings
) -> float:
    """The largest difference in learning rates, over what rounding allows."""
    worst = 0.0
    for name, wanted in expected.items():
        got = after.get(name)
        if got is None or got.shape != wanted.shape:
            found.add(f"after {where} there is no {name} of its shape", name)
            continue
        difference = (got.double() - wanted).abs()
        over = (difference - ROUNDING * wanted.abs()).clamp(min=0) / learning_rate
        worst = max(worst, float(over.max()) if over.numel() else 0.0)
        off = ~(over <= TOLERANCE)
        if count := int(off.sum()):
            still = " and did not move" if torch.equal(got[off].float(), before[name][off].float()) else ""
            which, rates = f"{count} of {off.numel()} entries of {name}", f"{float(over.max()):.3g} learning rates"
            found.add(f"after {where} {which} are off by up to {rates}{still}", name)
    return worst
