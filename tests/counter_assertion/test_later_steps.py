"""What the loss oracle says of steps after the first, where ratios leave 1."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tasks.counter_assertion.checks import loss_oracle
from tasks.counter_assertion.evidence import Evidence
from tasks.counter_assertion.oracle.objective import Tokens, at_a_clip
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PlainLoop, scenario

ONE = {"iterations": 1}
KL = {"kl_coefficient": 0.1, "kl_estimator": "k3"}


class ClipIgnored(PlainLoop):
    def token_loss(self, ratio, advantage):
        return -ratio * advantage


class OldLogProbsOfTheStep(PlainLoop):
    """Each step takes its own log-probs for the old ones: every ratio is 1."""

    def token_loss(self, ratio, advantage):
        return super().token_loss(ratio / ratio.detach(), advantage)


class HeldByTheReference(PlainLoop):
    """k3 against the run's first weights."""

    def reference(self):
        model = deepcopy(self.policy)
        model.load_state_dict(self.first_weights)
        return model

    def penalty(self, row, log_probs):
        with torch.no_grad():
            behind = self.log_probs(self.reference(), row) - log_probs.detach()
        behind = behind + log_probs.detach() - log_probs
        return 0.1 * (behind.exp() - 1 - behind)


class ReferenceUpdated(HeldByTheReference):
    def reference(self):
        return deepcopy(self.policy)


@pytest.mark.parametrize(
    ("loop", "training", "status"),
    [
        (PlainLoop, {}, "pass"),
        (ClipIgnored, {}, "fail"),
        (OldLogProbsOfTheStep, {}, "fail"),
        (HeldByTheReference, KL, "pass"),
        (ReferenceUpdated, KL, "fail"),
    ],
)
def test_a_later_step_shows_what_the_first_can_not(loop_of, loop, training, status):
    result = loss_oracle.check(evidence_of(loop_of(loop, rollout=ONE, training=training)))
    assert result.status == status, result.reason
    first, later = result.figures["steps compared"]
    assert first["largest gradient error"] < 1e-6 and first["ratio error"] == 0 < later["ratio error"]
    if status == "fail":
        assert "step 1 of iteration 0" in result.reason and "step 0 of iteration 0" not in result.reason
        assert later["largest gradient error"] > 1e-3


def without_weights(evidence: Evidence) -> Evidence:
    (it,) = evidence.iterations
    steps = tuple(replace(s, weights_before=None) for s in it.trained.steps)
    parts = {**it.parts, "trained": replace(it.trained, steps=steps)}
    return replace(evidence, iterations=(replace(it, parts=parts),))


def test_a_later_step_without_its_weights_is_left_out_and_named(loop_of):
    result = loss_oracle.check(without_weights(evidence_of(loop_of(rollout=ONE))))
    assert result.status == "pass" and len(result.figures["steps compared"]) == 1
    assert result.figures["not compared"] == {"step 1 of iteration 0": "the weights before it are not on record"}


def test_steps_behind_the_first_few_are_named(loop_of, monkeypatch):
    monkeypatch.setattr(loss_oracle, "MOST_STEPS", 1)
    result = loss_oracle.check(evidence_of(loop_of(rollout=ONE)))
    assert result.status == "pass" and result.reason.endswith("; not compared: step 1 of iteration 0")
    assert result.figures["not compared"] == {"step 1 of iteration 0": "behind the first 1 of the published steps"}


def test_a_later_step_whose_old_log_probs_are_gone_is_red(loop_of):
    evidence = evidence_of(loop_of(rollout=ONE))
    (it,) = evidence.iterations
    of_later = it.plan.steps[1].rollout_ids[0]
    known = {key: values for key, values in it.trainer_log_probs.items() if key[0] != of_later}
    one = (replace(it, parts={**it.parts, "trainer_log_probs": known}),)
    result = loss_oracle.check(replace(evidence, iterations=one))
    assert result.status == "fail" and of_later in result.ids
    assert "no trainer log-probs of their length" in result.reason


@pytest.mark.parametrize(
    ("estimator", "dual_clip", "ratio", "advantage", "near"),
    [
        ("grpo", None, 1.2, 1.0, True),
        ("grpo", None, 0.8, -1.0, True),
        ("grpo", None, 1.2, 0.0, False),
        ("grpo", None, 1.21, 1.0, False),
        ("grpo", 3.0, 3.0, -1.0, True),
        ("cispo", None, 1.2, 1.0, False),
        ("gspo", None, 1.2, 1.0, True),
    ],
)
def test_a_token_on_the_edge_of_a_clip_decides_nothing(estimator, dual_clip, ratio, advantage, near):
    training = scenario(training={"estimator": estimator, "dual_clip": dual_clip}).training
    new = torch.tensor([ratio], dtype=torch.float64).log()
    zero = torch.zeros_like(new)
    tokens = Tokens(
        log_probs=new,
        entropy=zero,
        advantages=torch.tensor([advantage], dtype=torch.float64),
        old=zero,
        reference=zero,
        engine=None,
    )
    assert at_a_clip(tokens, training, 1e-5).tolist() == [near]
