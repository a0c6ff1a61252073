import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import ContractViolation
from infra.records.sources import PROMPTS_SCHEMA
from infra.scenario.load import load
from infra.scenario.model import Scenario
from tasks.rollout.draw import draw_slots, draws, groups_of
from tests.cases_of import case
from tests.rollout.conftest import prompt_rows


def table(rows: int) -> pa.Table:
    return pa.Table.from_pylist(prompt_rows(rows), schema=PROMPTS_SCHEMA)


def scenario(*overrides: str) -> Scenario:
    return load("tiny", list(overrides))


def test_a_small_data_set_is_drawn_again_in_new_groups():
    known = case("budget-5")
    rows, prompts = known["input"]["rows"], known["input"]["prompts asked"]
    slots = draw_slots(scenario(f"rollout.prompts={prompts}", "rollout.rollouts_per_prompt=1"), table(rows), 0)
    assert [s.epoch for s in slots] == known["expect"]["epochs"]
    assert len({s.group_index for s in slots}) == known["expect"]["prompts"]
    assert [s.prompt_id for s in slots] == ["0", "1", "2", "0", "1", "2", "0", "1"]


def test_another_epoch_can_be_forbidden_and_the_refusal_gives_the_figures():
    small = scenario("rollout.prompts=8", "rollout.iterations=1", "data.allow_more_epochs=false")
    with pytest.raises(ContractViolation, match=r"3 prompts, the run asks for 8.*allow_more_epochs is off"):
        draw_slots(small, table(3), 0)


def test_an_empty_data_set_is_refused():
    with pytest.raises(ContractViolation, match="has 0 prompts"):
        draw_slots(scenario(), table(0), 0)


def test_the_refusal_comes_in_the_first_iteration_not_in_the_one_that_runs_dry():
    small = scenario("rollout.prompts=4", "rollout.iterations=3", "data.allow_more_epochs=false")
    with pytest.raises(ContractViolation, match="has 8 prompts, the run asks for 12"):
        draw_slots(small, table(8), 0)


@given(rows=st.integers(1, 9), prompts=st.integers(1, 9), iterations=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_draws_go_on_in_source_order_over_iterations_and_epochs(rows: int, prompts: int, iterations: int):
    drawn = [d for i in range(iterations) for d in draws(rows, prompts, i)]
    assert drawn == [(n, n % rows, n // rows) for n in range(iterations * prompts)]


@given(prompts=st.integers(1, 5), times=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_indices_and_groups_are_unique_in_the_run(prompts: int, times: int):
    wanted = scenario(
        f"rollout.prompts={prompts}", f"rollout.rollouts_per_prompt={times}", "training.global_batch_size=1"
    )
    slots = [s for i in range(3) for s in draw_slots(wanted, table(2), i)]
    assert [s.index for s in slots] == list(range(3 * prompts * times))
    assert all(len(group) == times for group in groups_of(slots).values())
    assert all(s.sample.index == s.index and s.sample.group_index == s.group_index for s in slots)
