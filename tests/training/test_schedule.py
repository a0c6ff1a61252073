import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.bench.schedule import karmarkar_karp_sums
from tasks.training.cost import ModelShape, token_count
from tasks.training.schedule import WORTH, Schedule, schedule_step
from tests.cases_of import case, numbers_in

SHAPE = ModelShape(layers=2, hidden=64, heads=4, key_value_heads=2, head_dim=16, mlp=128, vocabulary=512)


def check_invariants(schedule: Schedule, tokens: list[int], cap: int, group: int = 1, by_count: bool = False) -> None:
    batches = list(schedule.batches())
    per_rank = schedule.figures.micro_batches_per_rank
    assert {len(rank) for rank in batches} == {per_rank} and per_rank % group == 0
    assert sorted(k for rank in batches for batch in rank for k in batch) == list(range(len(tokens)))
    for rank in batches:
        for batch in rank:
            size = len(batch) if by_count else sum(tokens[k] for k in batch)
            assert size <= cap or len(batch) == 1
    empty = {(r, b) for r, rank in enumerate(batches) for b, batch in enumerate(rank) if not batch}
    assert empty == {(r, b) for r, b, _ in schedule.dummies}
    if empty:
        assert all(len(batch) <= 1 for rank in batches for batch in rank)


def test_equal_cost_over_ranks_where_the_cost_is_the_token_count():
    given, wanted = case("sched-9")["input"], case("sched-9")["expect"]
    (largest,) = numbers_in(wanted["difference of token sums"])
    tokens = given["tokens"]
    schedule = schedule_step(tokens, token_count(tokens), ranks=given["dp"], micro_batch_size=1)
    assert schedule.figures.micro_batches_per_rank == given["micro-batches per rank"]
    sums = np.bincount(schedule.rank, tokens)
    assert sums.max() - sums.min() <= largest


def test_only_a_lone_sample_exceeds_the_cap_and_it_is_reported():
    tokens = [50, 10, 10, 10, 200]
    schedule = schedule_step(tokens, tokens, ranks=1, token_cap=40)
    check_invariants(schedule, tokens, 40)
    assert schedule.figures.over_cap == 2


@st.composite
def steps(draw):
    tokens = draw(st.lists(st.integers(1, 60), min_size=1, max_size=60))
    return tokens, draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(20, 80))


@given(steps())
@settings(max_examples=150, deadline=None)
def test_every_sample_once_under_the_cap_with_equal_counts(step):
    tokens, ranks, group, cap = step
    cost = SHAPE.forward_flops(tokens)
    schedule = schedule_step(tokens, cost, ranks=ranks, token_cap=cap, group=group)
    check_invariants(schedule, tokens, cap, group)
    again = schedule_step(tokens, cost, ranks=ranks, token_cap=cap, group=group)
    assert (again.rank == schedule.rank).all() and (again.micro_batch == schedule.micro_batch).all()
    assert again.dummies == schedule.dummies
    figures = schedule.figures
    assert 1 <= figures.lower_bound <= figures.max_over_mean_cost + 1e-12 and 0 <= figures.padding_share < 1
    assert figures.fewest_micro_batches <= ranks * figures.micro_batches_per_rank


@given(steps(), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_static_micro_batches(step, size):
    tokens, ranks, group, _ = step
    schedule = schedule_step(tokens, SHAPE.forward_flops(tokens), ranks=ranks, micro_batch_size=size, group=group)
    check_invariants(schedule, tokens, size, group, by_count=True)
    needed = -(-len(tokens) // size)
    assert schedule.figures.micro_batches_per_rank == -(-needed // (ranks * group)) * group


@pytest.mark.parametrize("seed", range(40))
def test_at_least_as_even_as_karmarkar_karp(seed: int):
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(5, 1, rng.integers(8, 200)), 1, 2000).astype(int)
    ranks = int(rng.integers(2, 9))
    cost = SHAPE.forward_flops(tokens)
    schedule = schedule_step(tokens, cost, ranks=ranks, token_cap=4096)
    mine = np.bincount(schedule.rank, cost, ranks).max()
    assert schedule.figures.dummies == 0
    assert mine <= karmarkar_karp_sums(cost.tolist(), ranks)[-1] * (1 + WORTH)


@pytest.mark.parametrize(("samples", "sigma"), [(3_000, 0.5), (60_000, 0.5), (60_000, 1.0)])
def test_many_samples_are_packed_tightly_and_evenly(samples: int, sigma: float):
    tokens = np.clip(np.random.default_rng(0).lognormal(6.5, sigma, samples), 1, 16_384).astype(int)
    schedule = schedule_step(tokens, SHAPE.forward_flops(tokens), ranks=64, token_cap=16_384)
    check_invariants(schedule, tokens.tolist(), 16_384)
    assert schedule.figures.max_over_mean_cost < 1.0001
    assert schedule.figures.micro_batches_per_rank <= -(-schedule.figures.fewest_micro_batches // 64) + 1


def test_tight_packings_fall_back_on_best_fit_and_leave_no_bin_empty():
    tokens = [6, 6, 6, 4, 4, 4, 3, 3, 3, 2, 2, 2, 5, 5, 5]
    schedule = schedule_step(tokens, tokens, ranks=3, token_cap=20)
    check_invariants(schedule, tokens, 20)
    assert schedule.figures.micro_batches_per_rank == 1 and schedule.figures.padding_share == 0
