"""The same iteration in other shapes, without any trainer: what changes, and what must not."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records.rollouts import log_probs_table, rollouts_table
from infra.scenario.load import load
from infra.scenario.model import Scenario
from tasks.training.cost import ModelShape
from tasks.training.plan import make_plan
from tasks.training.signal import first_step_with_signal
from tasks.training.variants import (
    Iteration,
    merged_and_copied,
    other_layout,
    other_micro_batches,
    permuted,
    why_no_copies,
)

CONFIG = Path(__file__).parents[2] / "infra" / "sources" / "embedded" / "tiny" / "config.json"
MODEL = ModelShape.from_config(json.loads(CONFIG.read_text()))


def iteration(fan_outs: list[int], *overrides: str, advantages: list[float] | None = None) -> Iteration:
    """Rollouts of these fan-outs, two steps of half of them each; tokens and masks from the ids."""
    size = f"training.global_batch_size={max(len(fan_outs) // 2, 1)}"
    enough = [f"rollout.prompts={len(fan_outs)}", "rollout.rollouts_per_prompt=1"]
    scenario = load("tiny", [*enough, size, *overrides])
    rows, log_probs = [], []
    for rollout, fan_out in enumerate(fan_outs):
        for sibling in range(fan_out):
            length = 1 + (3 * rollout + sibling) % 7
            rows.append(
                {
                    "iteration": 0,
                    "group_index": rollout,
                    "index": rollout,
                    "rollout_id": 100 + rollout,
                    "sibling": sibling,
                    "prompt_id": "",
                    "epoch": 0,
                    "attempt": 1,
                    "prompt": "",
                    "label": None,
                    "response": "",
                    "tokens": [rollout, sibling, *range(length)],
                    "response_length": length,
                    "loss_mask": [int(sibling > 0 or fan_out == 1)] * length,
                    "status": "completed",
                    "remove_sample": False,
                    "reward": 0.0,
                    "advantage": advantages[rollout] if advantages else 1.0,
                    "weight_version": "0",
                    "metadata": "{}",
                }
            )
            log_probs.append({"rollout_id": 100 + rollout, "sibling": sibling, "log_probs": [-float(sibling)] * length})

    def planner(table: pa.Table, scenario: Scenario):
        return make_plan(table, scenario, MODEL, 0)

    table = rollouts_table(rows)
    return Iteration(
        table=table,
        log_probs=log_probs_table(log_probs),
        plan=planner(table, scenario),
        scenario=scenario,
        planner=planner,
    )


def tokens_of_step(shape, step: int) -> dict[tuple[int, ...], float]:
    """Tokens of each trained sample of a step, with their weight in the loss, added up over equal samples."""
    rows, found = shape.table["tokens"].to_pylist(), {}
    for s in shape.plan.steps[step].samples():
        found[tuple(rows[s.row])] = found.get(tuple(rows[s.row]), 0.0) + s.weight
    return found


FAN_OUTS = st.lists(st.integers(1, 4), min_size=2, max_size=12)


@settings(deadline=None, max_examples=25)
@given(FAN_OUTS, st.integers(0, 5))
def test_every_shape_trains_the_same_samples_with_the_same_weights_in_the_same_step(fan_outs, seed):
    it = iteration(fan_outs)
    shapes = [permuted(it, seed), other_layout(it), other_micro_batches(it, 0)]
    for shape in filter(None, shapes):
        for step in range(len(it.plan.steps)):
            assert tokens_of_step(shape, step) == pytest.approx(tokens_of_step(it, step))


@settings(deadline=None, max_examples=25)
@given(FAN_OUTS)
def test_copies_weigh_together_what_one_of_them_weighs_alone(fan_outs):
    merged, copied = merged_and_copied(iteration(fan_outs))
    for step in range(len(merged.plan.steps)):
        assert tokens_of_step(copied, step) == pytest.approx(tokens_of_step(merged, step))
    counts = np.unique(copied.table["rollout_id"].to_numpy(), return_counts=True)[1]
    assert counts.tolist() == [1 + n % 3 for n in range(len(fan_outs))]
    assert len(merged.table) == len(fan_outs)


def test_a_permutation_moves_rows_and_rollouts():
    it = iteration([1, 2, 3, 1, 2, 3, 1, 2])
    moved = permuted(it, 3)
    assert moved.table["rollout_id"].to_pylist() != it.table["rollout_id"].to_pylist()
    assert [s.rollout_ids for s in moved.plan.steps] != [s.rollout_ids for s in it.plan.steps]
    assert [set(s.rollout_ids) for s in moved.plan.steps] == [set(s.rollout_ids) for s in it.plan.steps]


def test_another_size_cuts_the_step_otherwise():
    it = iteration([2, 2, 2, 2])
    other = other_micro_batches(it, 0)
    assert other is not None and other.change == "training.max_tokens_per_gpu 1 instead of 24"
    alone = iteration([1, 1], "training.max_tokens_per_gpu=1", "training.data_parallel=1")
    assert other_micro_batches(alone, 0) is None


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1), (4, 1)])
def test_the_other_layout_has_one_data_parallel_rank_or_two(here, there):
    shape = other_layout(iteration([2, 2, 2, 2], f"training.data_parallel={here}"))
    assert shape.plan.data_parallel == shape.scenario.training.data_parallel == there


def test_the_one_sibling_is_one_that_trains_and_keeps_its_engine_log_probs():
    merged, copied = merged_and_copied(iteration([3, 1, 1]))
    assert merged.table["loss_mask"].to_pylist()[0] == [1, 1]
    first = copied.log_probs.to_pylist()[0]
    assert (first["sibling"], first["log_probs"]) == (0, [-1.0, -1.0])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], None),
        (["training.loss_mean=sample"], "more siblings weigh more"),
        (["training.whiten_advantages=true"], "whitening counts every trained token"),
    ],
)
def test_copies_are_compared_where_they_have_to_weigh_the_same(overrides, words):
    reason = why_no_copies(load("tiny", overrides).training)
    assert (reason is None) if words is None else (words in str(reason))


@pytest.mark.parametrize(
    ("advantages", "first"), [([0, 0, 0, 0], None), ([0, 0, 0, 0.5], 1), ([0, -1, 1, 0], 0), ([1, 1, 1, 1], 0)]
)
def test_signal_is_where_a_trained_token_has_an_advantage(advantages, first):
    it = iteration([1, 2, 1, 2], advantages=advantages)
    assert first_step_with_signal(it.table, it.plan) == first
