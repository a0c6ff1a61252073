import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.training.steps import NoFullStep, split_steps
from tests.cases_of import case, numbers_in


def positions(index, rollout_id, size):
    return [step.tolist() for step in split_steps(index, rollout_id, size).steps]


def test_siblings_apart_are_in_one_step():
    given, wanted = case("sched-8")["input"], case("sched-8")["expect"]
    assert positions(range(4), given["rollout_ids"], given["global_batch_size"]) == wanted["steps"]


def test_samples_per_step_vary_and_rollouts_do_not():
    given, wanted = case("sched-5")["input"], case("sched-5")["expect"]
    ids = [rollout for rollout, fan_out in enumerate(given["fan-out"]) for _ in range(fan_out)]
    steps = positions(range(len(ids)), ids, given["global_batch_size"])
    assert (len(steps), len(steps[0])) == (wanted["steps"], wanted["samples in it"])
    assert positions(range(7), ids, 2) == [[0, 1, 2], [3, 4, 5, 6]]


def test_trailing_rollouts_are_named():
    given, wanted = case("sched-4")["input"], case("sched-4")["expect"]
    split = split_steps([0, 1, 2], given["rollout_ids"], given["global_batch_size"])
    assert len(split.steps) == wanted["steps"] and list(split.left_over) == numbers_in(wanted["ledger"])
    assert split.rollout_ids == ((0, 1),)


def test_rollouts_go_in_the_order_of_their_index():
    split = split_steps([5, 1, 5, 0], [10, 11, 10, 12], 1)
    assert split.rollout_ids == ((12,), (11,), (10,))
    assert [s.tolist() for s in split.steps] == [[3], [1], [0, 2]]


def test_samples_without_index_keep_their_order():
    assert split_steps([None, None, None], [9, 4, 7], 1).rollout_ids == ((9,), (4,), (7,))


def test_no_full_step_names_both_numbers():
    with pytest.raises(NoFullStep, match="3 rollouts, 4 asked"):
        split_steps([0, 1, 2], [0, 1, 2], 4)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_rollout_is_in_one_step_or_left_over(ids, size):
    rollouts = list(dict.fromkeys(ids))
    if len(rollouts) < size:
        return
    split = split_steps(range(len(ids)), ids, size)
    assert [r for step in split.rollout_ids for r in step] + list(split.left_over) == rollouts
    assert all(len(step) == size for step in split.rollout_ids) and len(split.left_over) < size
    for step, members in zip(split.steps, split.rollout_ids, strict=True):
        assert step.tolist() == [k for k, r in enumerate(ids) if r in members]
