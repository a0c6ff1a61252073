from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks import normalize
from hooks.normalize import RewardRefused, advantages_by_rollout, advantages_by_sample, advantages_rloo
from hooks.sample import Sample, Status
from tests.cases_of import case, numbers_in


def args(std: bool = True, apart: bool = False) -> SimpleNamespace:
    return SimpleNamespace(grpo_std_normalization=std, siblings_scored_apart=apart, reward_key=None)


def sample(group: int, rollout: int | None, reward: float | None, **changed) -> Sample:
    return Sample(group_index=group, rollout_id=rollout, index=rollout, reward=reward, **changed)


def grouped(groups: list[list[float]]) -> list[Sample]:
    """Rollouts of one sample each."""
    flat = [(g, r) for g, rewards in enumerate(groups) for r in rewards]
    return [sample(g, k, r) for k, (g, r) in enumerate(flat)]


@pytest.mark.parametrize("name", ["norm-1", "norm-2", "norm-4"])
def test_groups_of_uneven_size(name: str):
    known = case(name)
    groups = known["input"]["groups"]
    raw, normalised = normalize.by_rollout(args(std=known["input"]["std"]), grouped(groups))
    assert raw == [r for rewards in groups for r in rewards]
    assert normalised == pytest.approx([a for g in known["expect"]["by_rollout"] for a in g], abs=1e-4)


def test_fan_out_counts_once_by_rollout_and_per_sibling_by_sample():
    known = case("norm-3")
    rollouts = known["input"]["rollouts"]
    samples = [sample(0, k, r["reward"]) for k, r in enumerate(rollouts) for _ in range(r["siblings"])]
    for hook in ("by_rollout", "by_sample"):
        normalised = getattr(normalize, hook)(args(), samples)[1]
        assert normalised == pytest.approx(known["expect"][hook], abs=1e-4)


def test_removed_samples_have_no_vote():
    known = case("norm-6")["input"]
    samples = [sample(0, k, r, remove_sample=x) for k, (r, x) in enumerate(zip(*known.values(), strict=True))]
    for hook in (normalize.by_rollout, normalize.by_sample, normalize.rloo):
        assert hook(args(), samples)[1] == [0, 0]
    assert normalize.by_rollout(args(std=False), [*samples, sample(0, 9, 3)])[1] == [0, -1, 1]


def test_one_rollout_a_prompt_gives_no_signal():
    known = case("norm-7")
    rollouts = np.repeat(np.arange(4), numbers_in(known["kind"])).tolist()
    samples = [sample(k, k, r) for k, r in zip(rollouts, known["input"]["rewards"], strict=True)]
    for hook in (normalize.by_rollout, normalize.by_sample, normalize.rloo):
        assert hook(args(), samples)[1] == known["expect"]["by_rollout"]


def test_siblings_with_different_rewards_are_refused_by_id():
    samples = [sample(0, 3, 1), sample(0, 4, 0), sample(0, 4, 1), sample(0, 4, 1)]
    for hook in (normalize.by_rollout, normalize.by_sample, normalize.rloo, normalize.identity):
        with pytest.raises(RewardRefused, match="rollouts 4") as refusal:
            hook(args(), samples)
        assert refusal.value.ids == (4,)


def test_siblings_scored_apart_vote_with_their_mean():
    samples = [sample(0, 3, 1), sample(0, 4, 0), sample(0, 4, 1)]
    assert normalize.by_rollout(args(std=False, apart=True), samples)[1] == [0.25, -0.25, -0.25]


@pytest.mark.parametrize(
    ("rollouts", "by_sample", "by_rollout"),
    [([(1, 3), (0, 1)], [0.25, 0.25, 0.25, -0.75], [0.5, 0.5, 0.5, -0.5])],
)
def test_known_values_without_std(rollouts, by_sample, by_rollout):
    samples = [sample(0, k, reward) for k, (reward, siblings) in enumerate(rollouts) for _ in range(siblings)]
    assert normalize.by_sample(args(std=False), samples)[1] == by_sample
    assert normalize.by_rollout(args(std=False), samples)[1] == by_rollout


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    rewards, rollout = np.array([1.0, 0, 0, 4]), np.array([0, 1, 1, 2])
    assert advantages_rloo(rewards, rollout, np.zeros(4, int)).tolist() == pytest.approx([-1, -2.5, -2.5, 3.5])


def test_identity_is_the_raw_reward():
    assert normalize.identity(args(), grouped([[1, 3], [5]]))[1] == [1, 3, 5]


def test_a_rollout_with_an_aborted_sibling_has_no_vote():
    samples = [sample(0, 0, 1), sample(0, 1, None), sample(0, 1, None, status=Status.ABORTED), sample(0, 2, 0)]
    assert normalize.by_rollout(args(std=False), samples)[1] == [0.5, 0, 0, -0.5]


def test_samples_without_rollout_id_are_rollouts_of_their_own():
    assert normalize.by_rollout(args(std=False), [sample(0, None, 1), sample(0, None, 0)])[1] == [0.5, -0.5]


def test_a_missing_reward_is_refused_by_id():
    with pytest.raises(RewardRefused, match="rollout 7") as refusal:
        normalize.by_rollout(args(), [sample(0, 7, None), sample(0, 8, 1)])
    assert refusal.value.ids == ("rollout 7",)


def test_a_missing_group_is_refused_by_id():
    with pytest.raises(RewardRefused, match="group_index"):
        normalize.by_rollout(args(), [Sample(rollout_id=3, reward=1.0)])


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_rewards_that_are_not_finite_are_refused(reward: float):
    for formula in (advantages_by_rollout, advantages_rloo):
        with pytest.raises(RewardRefused, match="5"):
            formula([reward, 1], [5, 6], [0, 0])
    with pytest.raises(RewardRefused, match="9"):
        advantages_by_sample([reward, 1], [9, 9])


@given(value=st.floats(-1e6, 1e6), rollouts=st.integers(1, 40), std=st.booleans())
@settings(max_examples=40, deadline=None)
def test_equal_rewards_give_exactly_zero(value: float, rollouts: int, std: bool):
    advantages = advantages_by_rollout([value] * rollouts, range(rollouts), [0] * rollouts, divide_by_std=std)
    assert (advantages == 0).all()


@st.composite
def batches(draw):
    """Rewards of rollouts, their groups and fan-outs."""
    count = draw(st.integers(1, 12))
    rewards = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    groups = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    fan_outs = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    return np.array(rewards, float), np.array(groups), np.array(fan_outs)


@given(batches(), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_advantages_depend_on_neither_fan_out_nor_order(batch, std, random):
    rewards, groups, fan_outs = batch
    alone = advantages_by_rollout(rewards, range(len(rewards)), groups, divide_by_std=std)
    rollout = np.repeat(np.arange(len(rewards)), fan_outs)
    order = np.array(random.sample(range(len(rollout)), len(rollout)))
    rollout = rollout[order]
    fanned = advantages_by_rollout(rewards[rollout], rollout, groups[rollout], divide_by_std=std)
    assert (fanned == alone[rollout]).all()
    for group in np.unique(groups):
        assert abs(alone[groups == group].sum()) < 1e-9


@given(batches())
@settings(max_examples=40, deadline=None)
def test_leave_one_out_against_its_definition(batch):
    rewards, groups, _ = batch
    expected = [
        r - others.mean() if len(others := np.delete(rewards, k)[np.delete(groups, k) == g]) else 0.0
        for k, (r, g) in enumerate(zip(rewards, groups, strict=True))
    ]
    assert advantages_rloo(rewards, range(len(rewards)), groups) == pytest.approx(expected)
