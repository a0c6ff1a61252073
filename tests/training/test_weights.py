import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.training.weights import LossMean, sample_weights
from tests.cases_of import case, numbers_in

FAN_OUT = [[5], [3, 4], [2, 7, 1], [6]]  # rollouts -> trained tokens of their siblings


def flat(rollouts=FAN_OUT):
    return [n for r in rollouts for n in r], [k for k, r in enumerate(rollouts) for _ in r]


def reference_losses() -> list[list[float]]:
    """Token losses of each sample, as the reference numbers were made."""
    generator = random.Random(0)
    return [[generator.random() for _ in range(n)] for siblings in FAN_OUT for n in siblings]


def loss(mode: LossMean, losses: list[list[float]], rollout, group=None) -> float:
    tokens = [len(x) for x in losses]
    weights, _ = sample_weights(mode, tokens, rollout, rollout if group is None else group)
    return float(sum(w * sum(x) for w, x in zip(weights, losses, strict=True)))


def test_mean_over_rollouts_and_the_three_usual_mistakes():
    known, losses, (_, rollout) = case("loss-2"), reference_losses(), flat()
    assert [len(siblings) for siblings in FAN_OUT] == numbers_in(known["input"])
    right = loss("rollout", losses, rollout)
    assert right == pytest.approx(known["expect"]["loss"], abs=5e-5)
    sample_mean = loss("sample", losses, rollout)
    mistakes = {"sample means / rollouts": sample_mean * 7 / 4, "sample": sample_mean}
    mistakes["token"] = loss("token", losses, rollout)
    assert [round(m, 4) for m in mistakes.values()] == [1.0349, 0.5914, 0.5896]


def test_denominator_is_of_the_whole_rollout():
    known = case("loss-1")
    masks = known["input"]["sibling masks"]
    weights, _ = sample_weights("rollout", masks, [0] * 3, [0] * 3)
    assert 1 / weights == pytest.approx([known["expect"]["denominator of every sibling"]] * 3)


def test_fully_masked_sample_in_the_token_mean():
    known = case("loss-6")
    masks = known["input"]["masks"]
    weights, _ = sample_weights("token", [sum(m) for m in masks], [0, 1], [0, 1])
    assert 1 / weights[0] == known["expect"]["denominator"]


def test_fully_masked_rollout_leaves_the_mean():
    known = case("loss-7")
    rollouts, masked = known["input"]["rollouts"], known["input"]["fully masked"]
    tokens = [0] * masked + [3, 2, 5, 4][masked:rollouts]
    weights, in_mean = sample_weights("rollout", tokens, range(rollouts), range(rollouts))
    assert in_mean == known["expect"]["mean over"]
    assert (weights * tokens).sum() == pytest.approx(1)


def test_everything_masked_is_zero_and_finite():
    masks = case("loss-8")["input"]["masks"]
    for mode in ("rollout", "sample", "token", "prompt", "constant"):
        weights, in_mean = sample_weights(mode, [sum(m) for m in masks], [0, 1], [0, 1])
        assert np.isfinite(weights).all() and in_mean == 0


def test_constant_divides_each_rollout_by_the_same_number():
    weights, _ = sample_weights("constant", [3, 5], [0, 1], [0, 0], constant=10)
    assert weights.tolist() == [1 / 20, 1 / 20]


def test_prompt_mean_weighs_groups_alike():
    weights, _ = sample_weights("prompt", [3, 5, 2], [0, 1, 2], [0, 0, 1])
    assert weights == pytest.approx([1 / 16, 1 / 16, 1 / 4])


fan_outs = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=8)


@given(fan_outs, st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_weights_depend_on_neither_order_nor_how_a_rollout_is_cut(rollouts, rng):
    tokens, rollout = flat(rollouts)
    for mode in ("rollout", "token", "prompt", "constant"):
        whole, in_mean = sample_weights(mode, [sum(r) for r in rollouts], range(len(rollouts)), [0] * len(rollouts))
        cut, cut_in_mean = sample_weights(mode, tokens, rollout, [0] * len(tokens))
        assert cut == pytest.approx(whole[rollout]) and cut_in_mean == in_mean
    order = rng.sample(range(len(tokens)), len(tokens))
    for mode in ("rollout", "sample", "token", "prompt", "constant"):
        straight, _ = sample_weights(mode, tokens, rollout, rollout)
        shuffled, _ = sample_weights(mode, np.array(tokens)[order], np.array(rollout)[order], np.array(rollout)[order])
        assert (shuffled == straight[order]).all()


@given(fan_outs)
@settings(max_examples=40, deadline=None)
def test_weights_of_a_mean_add_up_to_one(rollouts):
    tokens, rollout = flat(rollouts)
    for mode in ("rollout", "sample", "token", "prompt"):
        weights, _ = sample_weights(mode, tokens, rollout, [r % 2 for r in rollout])
        assert float((weights * tokens).sum()) == pytest.approx(1 if sum(tokens) else 0)
