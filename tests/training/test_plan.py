from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records.plan import LeftOut, TrainingPlan
from infra.records.rollouts import rollouts_table
from infra.scenario.load import load
from tasks.training.cost import ModelShape
from tasks.training.plan import make_plan
from tasks.training.steps import NoFullStep
from tests.cases_of import case, numbers_in
from tests.reward_normalization.rows import row

SHAPE = ModelShape(layers=2, hidden=64, heads=4, key_value_heads=2, head_dim=16, mlp=128, vocabulary=512)


def plan_of(rows, *overrides: str) -> TrainingPlan:
    base = ["training.global_batch_size=4", "training.data_parallel=2", "training.max_tokens_per_gpu=16"]
    return make_plan(rollouts_table(rows), load("tiny", [*base, *overrides]), SHAPE, 0)


def fanned(rollouts: int = 8):
    return [row(r, r // 4, s, response_length=2 + (r + s) % 5) for r in range(rollouts) for s in range(1 + r % 3)]


def test_every_sample_once_and_the_plan_survives_its_record():
    rows = fanned(9)
    plan = plan_of(rows)
    trained = [s for step in plan.steps for s in step.samples()]
    assert sorted(s.row for s in trained) == [k for k, r in enumerate(rows) if r["rollout_id"] < 8]
    assert all((s.rollout_id, s.sibling) == (rows[s.row]["rollout_id"], rows[s.row]["sibling"]) for s in trained)
    assert plan.left_out == (LeftOut(rollout_id=8, reason="trailing"),)
    assert TrainingPlan.from_dict(plan.to_dict()) == plan


def plan_of_case(given: dict[str, Any], *overrides: str) -> tuple[list[dict[str, Any]], TrainingPlan]:
    """One row for each rollout id of a case, in its order and of its length, and their plan under its settings."""
    ids = given.get("rollout_ids") or [r for r, fan_out in enumerate(given["fan-out"]) for _ in range(fan_out)]
    lengths = given.get("tokens", [10] * len(ids))
    rows = [row(r, 0, ids[:k].count(r), index=k, tokens=[1] * lengths[k]) for k, r in enumerate(ids)]
    settings = {"global_batch_size": given["global_batch_size"], "data_parallel": given.get("dp", 2)}
    if "micro_batch_size" in given:
        settings |= {"max_tokens_per_gpu": "null", "micro_batch_size": given["micro_batch_size"]}
    elif "max_tokens_per_gpu" in given:
        settings |= {"max_tokens_per_gpu": given["max_tokens_per_gpu"]}
    return rows, plan_of(rows, *(f"training.{name}={value}" for name, value in settings.items()), *overrides)


@pytest.mark.parametrize("name", ["sched-1", "sched-2", "sched-3", "sched-5"])
def test_known_rollouts_are_one_step_with_every_sample_once(name: str):
    given, wanted = case(name)["input"], case(name)["expect"]
    rows, plan = plan_of_case(given)
    assert len(plan.steps) == wanted.get("steps", 1) and plan.left_out == ()
    step = plan.steps[0]
    assert step.rollout_ids == tuple(range(given["global_batch_size"])) and len(step.ranks) == given.get("dp", 2)
    times = Counter(s.row for s in step.samples())
    assert times == dict.fromkeys(range(len(rows)), wanted.get("each sample trained", 1))
    assert len(times) == given.get("samples", wanted.get("samples in it", len(rows)))
    counts = {len(batches) for batches in step.ranks}
    assert counts == {wanted.get("micro-batches per rank", max(counts))}
    dummies = [s for batches in step.ranks for batch in batches for s in batch.samples if s.dummy]
    assert len(dummies) == wanted.get("zero-weight dummies", len(dummies)) and not any(s.weight for s in dummies)
    assert all(s.weight > 0 for s in step.samples())


def test_a_trailing_rollout_is_carried_over_or_dropped_with_the_reason():
    given, wanted = case("sched-4")["input"], case("sched-4")["expect"]
    (trailing,) = numbers_in(wanted["ledger"])
    for rule, reason in (("drop", "trailing"), ("carry", "carried")):
        _, plan = plan_of_case(given, f"training.trailing={rule}")
        assert len(plan.steps) == wanted["steps"]
        assert plan.left_out == (LeftOut(rollout_id=trailing, reason=reason),)


def test_siblings_apart_are_trained_in_one_step():
    given, wanted = case("sched-8")["input"], case("sched-8")["expect"]
    _, plan = plan_of_case(given)
    assert [sorted(s.row for s in step.samples()) for step in plan.steps] == wanted["steps"]


def test_a_rollout_over_several_micro_batches_has_one_denominator():
    given, wanted = case("loss-1")["input"], case("loss-1")["expect"]
    masks, split = given["sibling masks"], given["micro-batches"]
    length = {k: 12 // len(batch) for batch in split for k in batch}  # two short samples cost what a long one does
    rows = [row(0, 0, k, response_length=n, tokens=[1] * length[k]) for k, n in enumerate(masks)]
    size = f"training.micro_batch_size={max(map(len, split))}"
    one = ["training.global_batch_size=1", "training.data_parallel=1", "training.max_tokens_per_gpu=null", size]
    (step,) = plan_of(rows, *one).steps
    assert sorted(sorted(s.row for s in batch.samples) for batch in step.ranks[0]) == split
    assert [1 / s.weight for s in step.samples()] == pytest.approx([wanted["denominator of every sibling"]] * 3)


def test_each_rollout_is_opened_once_by_its_first_sibling():
    for step in plan_of(fanned()).steps:
        opening = [s for s in step.samples() if s.opens_rollout]
        assert sorted(s.rollout_id for s in opening) == sorted(step.rollout_ids)
        assert all(s.sibling == 0 for s in opening)


def test_weights_of_a_step_add_up_to_one_rollout_each():
    rows = fanned()
    for step in plan_of(rows).steps:
        share = dict.fromkeys(step.rollout_ids, 0.0)
        for s in step.samples():
            share[s.rollout_id] += s.weight * sum(rows[s.row]["loss_mask"])
        assert share == pytest.approx(dict.fromkeys(step.rollout_ids, 1 / 4))


def test_a_fully_masked_rollout_keeps_its_place_and_leaves_the_mean():
    rows = [row(r, 0, loss_mask=[0, 0, 0] if r == 3 else [1, 1, 0]) for r in range(4)]
    plan = plan_of(rows)
    (step,) = plan.steps
    assert step.rollout_ids == (0, 1, 2, 3) and step.rollouts_in_mean == 3
    assert {s.rollout_id for s in step.samples()} == {0, 1, 2}
    assert plan.left_out == (LeftOut(rollout_id=3, reason="fully masked"),)
    assert {s.weight for s in step.samples()} == {1 / 6}


def test_removed_samples_are_not_run_and_their_tokens_do_not_count():
    rows = [row(0, 0, 0), row(0, 0, 1, remove_sample=True), row(1, 0, remove_sample=True), row(2, 0), row(3, 0)]
    plan = plan_of(rows)
    (step,) = plan.steps
    assert sorted((s.rollout_id, s.sibling) for s in step.samples()) == [(0, 0), (2, 0), (3, 0)]
    assert plan.left_out == (LeftOut(rollout_id=1, reason="removed"),) and step.rollouts_in_mean == 3
    assert all(s.weight == pytest.approx(1 / 9) for s in step.samples())


def test_a_rollout_with_an_aborted_sibling_is_dropped_as_a_whole():
    rows = [row(0, 0, 0), row(0, 0, 1, status="aborted"), *(row(r, 0) for r in range(1, 5))]
    plan = plan_of(rows)
    assert plan.steps[0].rollout_ids == (1, 2, 3, 4)
    assert plan.left_out == (LeftOut(rollout_id=0, reason="aborted"),)


def test_carried_rollouts_say_so():
    assert plan_of(fanned(9), "training.trailing=carry").left_out == (LeftOut(rollout_id=8, reason="carried"),)


def test_the_last_iteration_drops_what_it_can_not_carry():
    plan = plan_of(fanned(9), "training.trailing=carry", "rollout.iterations=1")
    assert plan.left_out == (LeftOut(rollout_id=8, reason="trailing"),)


def test_rollouts_carried_over_are_trained_first():
    rows = [row(r, r // 4, iteration=0 if r < 3 else 1) for r in (2, 1, 0, 3, 4, 5, 6, 7, 8)]
    assert [s.rollout_ids for s in plan_of(rows).steps] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_no_step_at_all_names_both_numbers():
    with pytest.raises(NoFullStep, match="3 rollouts, 4 asked"):
        plan_of(fanned(3))


def test_a_step_of_masked_rollouts_only_still_runs_on_every_rank():
    plan = plan_of([row(r, 0, loss_mask=[0, 0, 0]) for r in range(4)])
    (step,) = plan.steps
    assert step.rollouts_in_mean == 0 and step.samples() == []
    assert [[[(s.weight, s.dummy) for s in b.samples] for b in rank] for rank in step.ranks] == [[[(0.0, True)]]] * 2
    assert len(plan.left_out) == 4


def test_context_parallel_ranks_widen_the_cap():
    plan = plan_of(fanned(), "training.context_parallel=2")
    assert plan.token_cap == 32


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=4, max_size=10),
    st.integers(1, 3),
    st.sampled_from(["max_tokens_per_gpu=16", "max_tokens_per_gpu=40", "micro_batch_size=2"]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_the_loss_is_the_same_under_any_order_and_split(lengths, ranks, rule, rng):
    rows = [row(r, r % 2, s, response_length=n) for r, ls in enumerate(lengths) for s, n in enumerate(ls)]
    losses = {
        (r["rollout_id"], r["sibling"]): np.sin(7.0 * k + np.arange(r["response_length"])).sum()
        for k, r in enumerate(rows)
    }
    steps = [lengths[k : k + 4] for k in range(0, len(lengths) // 4 * 4, 4)]
    expected = [
        sum(sum(losses[4 * n + k, s] for s in range(len(ls))) / sum(ls) for k, ls in enumerate(step)) / 4
        for n, step in enumerate(steps)
    ]
    shuffled = rng.sample(rows, len(rows))
    other = "training.micro_batch_size=null" if rule.startswith("max") else "training.max_tokens_per_gpu=null"
    plan = plan_of(shuffled, f"training.data_parallel={ranks}", other, f"training.{rule}")
    for step, value in zip(plan.steps, expected, strict=True):
        total = sum(s.weight * losses[s.rollout_id, s.sibling] for s in step.samples())
        assert total == pytest.approx(value, abs=1e-12)
        assert len({len(rank) for rank in step.ranks}) == 1


@pytest.mark.parametrize(("group", "multiple"), [("null", 2), ("3", 3)])
def test_micro_batches_come_in_groups_of_a_virtual_pipeline(group: str, multiple: int):
    virtual = ["training.pipeline_parallel=2", "training.virtual_pipeline=2", f"training.microbatch_group_size={group}"]
    for step in plan_of(fanned(), *virtual).steps:
        assert {len(rank) % multiple for rank in step.ranks} == {0}
        assert len({len(rank) for rank in step.ranks}) == 1
