"""What determinism and invariance say of a second computation that differs, lacks or is damaged."""

from dataclasses import replace
from typing import Any

import pytest
from safetensors.torch import load, save

from infra.records.replay import Invariance, NotCompared, Variant
from tasks.counter_assertion.checks import determinism, invariance
from tasks.counter_assertion.evidence import Absent, Evidence, IterationEvidence
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PlainLoop
from tests.gradients import grad_of

ONE = {"iterations": 1}


@pytest.fixture
def evidence(loop_of) -> Evidence:
    return evidence_of(loop_of(rollout=ONE))


def with_part(evidence: Evidence, name: str, value: Any) -> Evidence:
    (it,) = evidence.iterations
    parts = {k: v for k, v in {**it.parts, name: value}.items() if v is not None}
    return replace(evidence, iterations=(IterationEvidence(iteration=0, parts=parts),))


def with_checks(evidence: Evidence, **checks: bool) -> Evidence:
    settings = evidence.scenario.checks.model_copy(update=checks)
    return replace(evidence, scenario=evidence.scenario.model_copy(update={"checks": settings}))


class RoundsOtherwiseInTheReplay(PlainLoop):
    """As a process does that adds in another order, from its second step on."""

    again = False

    def compute_again(self, rows, trained, table):
        self.again = True
        super().compute_again(rows, trained, table)

    def after_backward(self):
        if self.again and self.optimizer.state:
            for p in self.policy.parameters():
                grad_of(p).mul_(1 + 1e-9)


def test_the_first_step_that_differs_is_named(loop_of):
    result = determinism.check(evidence_of(loop_of(RoundsOtherwiseInTheReplay, rollout=ONE)))
    assert result.status == "fail" and result.ids == (0, 1)
    assert result.reason.startswith("after step 1 of iteration 0 the weights are ")


@pytest.mark.parametrize("what", ["plan", "rollouts"])
def test_a_replay_of_something_else_is_no_replay(evidence, what):
    replay = evidence.iterations[0].replay
    other = replace(replay, **{what: replace(getattr(replay, what), sha256="0" * 64)})
    result = determinism.check(with_part(evidence, "replay", other))
    assert result.status == "fail" and f"other {what}" in result.reason.replace("another", "other")


def test_a_replay_that_stops_early_is_no_replay(evidence):
    replay = evidence.iterations[0].replay
    result = determinism.check(with_part(evidence, "replay", replace(replay, step_digests=replay.step_digests[:1])))
    assert result.status == "fail" and "took 1 steps, not 2" in result.reason


@pytest.mark.parametrize(("check", "part"), [(determinism, "replay"), (invariance, "invariance")])
def test_without_a_record_it_did_not_run_and_says_whether_that_was_wanted(evidence, check, part):
    without = with_part(evidence, part, None)
    assert check.check(without).status == "not run"
    assert "again" in check.check(without).reason
    unwanted = check.check(with_checks(without, **{check.NAME: False}))
    assert (unwanted.status, unwanted.reason) == ("not run", f"the scenario says checks.{check.NAME}: false")
    lost = Absent(part=part, iteration=0, reason="it is gone", damaged=True)
    assert check.check(replace(without, absent=(lost,))).status == "infra"


def variant(evidence: Evidence, name: str, factor: float) -> Variant:
    """The run's own gradient, with one tensor scaled, as the gradient of a shape."""
    own = evidence.iterations[0].trained.steps[0].gradient
    assert own is not None
    tensors = load(evidence.store.read(own))
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * factor
    published = evidence.store.publish(f"{name}.safetensors", save(tensors))
    return Variant(name=name, change="by hand", gradient=published, against=own)


def shapes(*variants: Variant, dtype: str = "float32", not_compared: tuple[NotCompared, ...] = ()) -> Invariance:
    return Invariance(iteration=0, step=0, dtype=dtype, variants=variants, not_compared=not_compared)


@pytest.mark.parametrize(
    ("factor", "dtype", "status"),
    [
        (1 + 1e-6, "float32", "pass"),
        (1 + 1e-4, "float32", "fail"),
        (1.01, "bfloat16", "pass"),
        (1.2, "bfloat16", "fail"),
    ],
)
def test_a_difference_is_bounded_by_the_type_it_was_computed_in(evidence, factor, dtype, status):
    record = shapes(variant(evidence, "permuted", factor), dtype=dtype)
    result = invariance.check(with_part(evidence, "invariance", record))
    assert result.status == status, result.reason
    assert result.figures["largest error by shape"]["permuted"] == pytest.approx(factor - 1, rel=0.1)
    if status == "fail":
        assert result.ids == ("model.norm.weight",)


def test_a_shape_has_to_be_compared_with_the_gradient_of_the_run(evidence):
    made_up = replace(variant(evidence, "permuted", 2.0), against=variant(evidence, "other", 2.0).gradient)
    result = invariance.check(with_part(evidence, "invariance", shapes(made_up)))
    assert result.status == "fail" and "not compared with the run's own gradient" in result.reason


def test_what_could_not_be_compared_is_said(evidence):
    lacking = (NotCompared(name="data-parallel", reason="it needs 2 GPUs, the cluster has 1"),)
    record = shapes(variant(evidence, "permuted", 1.0), not_compared=lacking)
    result = invariance.check(with_part(evidence, "invariance", record))
    assert result.status == "pass" and "not compared: data-parallel (it needs 2 GPUs" in result.reason
    nothing = invariance.check(with_part(evidence, "invariance", shapes(not_compared=lacking)))
    assert nothing.status == "not run" and "it needs 2 GPUs" in nothing.reason
