"""Our functions behind the signatures of slime and verl, held to the properties that their own tests ask of theirs.

The adapters are ours, and so are the plain forms they are compared with; the peers' code is not here.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.normalize import by_rollout, by_sample
from hooks.sample import Sample, Status
from tasks.training.partition import karmarkar_karp
from tasks.training.schedule import schedule_step
from tasks.training.weights import LossMean, sample_weights

Lengths = list[int]


def get_seqlen_balanced_partitions(seqlen_list: Lengths, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """`k_partitions` lists of positions, each rising, of nearly equal sums; with `equal_size` of equal counts."""
    if equal_size:
        part_of = schedule_step(seqlen_list, seqlen_list, ranks=k_partitions, micro_batch_size=1).rank
    else:
        part_of = karmarkar_karp(np.asarray(seqlen_list, float), k_partitions, equal_counts=False)
    return [np.flatnonzero(part_of == part).tolist() for part in range(k_partitions)]


def rearrange_micro_batches(
    seqlen_list: Lengths, max_token_len: int, dp_size: int, multiple: int = 1
) -> list[list[list[int]]]:
    """For each data-parallel rank, its micro-batches as lists of positions."""
    schedule = schedule_step(seqlen_list, seqlen_list, ranks=dp_size, token_cap=max_token_len, group=multiple)
    return list(schedule.batches())


def get_sum_of_sample_mean(
    response_lengths: Lengths, loss_masks: list[torch.Tensor], rollout_ids: Lengths, mode: LossMean
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A reducer of concatenated response tokens: slime sums means first and divides by their number later."""
    trained = [int(m.sum()) for m in loss_masks]
    weights, _ = sample_weights(mode, trained, rollout_ids, [0] * len(trained))
    of_token = torch.repeat_interleave(torch.from_numpy(weights), torch.tensor(response_lengths)) * torch.cat(
        loss_masks
    )
    return lambda values: (values * of_token).sum()


# Balancing ---------------------------------------------------------------------------------------------------------


def equal_count_differencing(lengths: Lengths, parts: int) -> int:
    """Largest sum of the largest differencing method with equal counts, plainly: states of one item a part."""
    falling = sorted(lengths, reverse=True)
    states = [sorted(falling[k : k + parts]) for k in range(0, len(falling), parts)]
    heap = [(s[0] - s[-1], n, s) for n, s in enumerate(states)]
    heapq.heapify(heap)
    for number in range(len(heap), 2 * len(heap) - 1):
        (*_, first), (*_, second) = heapq.heappop(heap), heapq.heappop(heap)
        merged = sorted(a + b for a, b in zip(first, reversed(second), strict=True))
        heapq.heappush(heap, (merged[0] - merged[-1], number, merged))
    return heap[0][2][-1]


def log_normal(count: int, seed: int) -> Lengths:
    draw = random.Random(seed)
    return [min(16_384, max(1, int(draw.lognormvariate(6.5, 1.0)))) for _ in range(count)]


@pytest.mark.parametrize("equal_size", [True, False])
@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_partitions_hold_every_index_once(equal_size: bool, parts: int, each: int, seed: int):
    lengths = log_normal(parts * each, seed)
    found = get_seqlen_balanced_partitions(lengths, parts, equal_size)
    assert len(found) == parts and all(found)
    assert sorted(i for part in found for i in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in found)
    assert not equal_size or {len(part) for part in found} == {each}


@pytest.mark.parametrize("count", [64, 256, 1024])
@pytest.mark.parametrize("parts", [2, 8, 32])
def test_balance_is_no_worse_than_karmarkar_karp_of_equal_size(count: int, parts: int):
    for seed in range(3):
        lengths = log_normal(count, seed)
        found = get_seqlen_balanced_partitions(lengths, parts, equal_size=True)
        assert max(sum(lengths[i] for i in part) for part in found) <= equal_count_differencing(lengths, parts)


def test_partitioning_is_deterministic():
    lengths = log_normal(300, 5)
    first, second = (get_seqlen_balanced_partitions(lengths, 4, equal_size=True) for _ in range(2))
    assert first == second


@given(st.integers(1, 6), st.integers(1, 120), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_micro_batches_of_all_ranks_are_equally_many_and_under_the_cap(dp: int, count: int, multiple: int, seed: int):
    lengths, cap = log_normal(count, seed), 8192
    ranks = rearrange_micro_batches(lengths, cap, dp, multiple)
    assert len({len(rank) for rank in ranks}) == 1 and len(ranks[0]) % multiple == 0
    batches = [batch for rank in ranks for batch in rank]
    assert sorted(i for batch in batches for i in batch) == list(range(count))
    assert all(sum(lengths[i] for i in b) <= cap or len(b) == 1 for b in batches)


# Reducers ----------------------------------------------------------------------------------------------------------


def random_step(fan_outs: Sequence[int], seed: int) -> tuple[Lengths, list[torch.Tensor], Lengths, torch.Tensor]:
    draw = random.Random(seed)
    rollouts = [k for k, fan_out in enumerate(fan_outs) for _ in range(fan_out)]
    lengths = [draw.randrange(1, 9) for _ in rollouts]
    masks = [torch.tensor([1.0] + [float(draw.random() < 0.7) for _ in range(n - 1)]) for n in lengths]
    return lengths, masks, rollouts, torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed)).double()


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_the_sum_of_sample_means(fan_outs: list[int], seed: int):
    lengths, masks, rollouts, values = random_step(fan_outs, seed)
    parts = values.split(lengths)
    plain = sum((x * m).sum() / m.sum().clamp(min=1) for x, m in zip(parts, masks, strict=True))
    reducer = get_sum_of_sample_mean(lengths, masks, rollouts, "sample")
    assert float(reducer(values)) * len(lengths) == pytest.approx(float(plain))
    per_token = sum((x * m).sum() for x, m in zip(parts, masks, strict=True)) / sum(m.sum() for m in masks)
    assert float(get_sum_of_sample_mean(lengths, masks, rollouts, "token")(values)) == pytest.approx(float(per_token))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_with_one_sample_a_rollout_the_rollout_mean_is_the_sample_mean(fan_outs: list[int], seed: int):
    lengths, masks, rollouts, values = random_step([1] * len(fan_outs), seed)
    by_mode = [float(get_sum_of_sample_mean(lengths, masks, rollouts, m)(values)) for m in ("rollout", "sample")]
    assert by_mode[0] == pytest.approx(by_mode[1])


@given(st.lists(st.integers(1, 3), min_size=2, max_size=8), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_reducer_adds_up_over_any_split_into_micro_batches(fan_outs: list[int], seed: int):
    lengths, masks, rollouts, values = random_step(fan_outs, seed)
    whole = get_sum_of_sample_mean(lengths, masks, rollouts, "rollout")
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    micro_batch = torch.tensor([random.Random(seed + k).randrange(3) for k in range(len(lengths))])[owner]
    split = sum(float(whole(torch.where(micro_batch == k, values, 0))) for k in range(3))
    assert split == pytest.approx(float(whole(values)), abs=1e-12)


# Group normalisation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", [by_rollout, by_sample])
@pytest.mark.parametrize("std", [True, False])
def test_without_fan_out_normalisation_is_the_reshaped_one(hook: Callable, std: bool):
    """slime reshapes rewards to [prompts, samples a prompt]; that is right where every rollout is one sample."""
    draw = random.Random(2)
    rewards = torch.tensor([[draw.random() for _ in range(4)] for _ in range(6)], dtype=torch.float64)
    plain = rewards - rewards.mean(-1, keepdim=True)
    if std:
        plain = plain / (rewards.std(-1, keepdim=True) + 1e-6)
    samples = [
        Sample(index=i, rollout_id=i, group_index=i // 4, reward=r, status=Status.COMPLETED)
        for i, r in enumerate(rewards.flatten().tolist())
    ]
    args = SimpleNamespace(grpo_std_normalization=std, reward_key=None)
    raw, normalised = hook(args, samples)
    assert raw == rewards.flatten().tolist() and normalised == pytest.approx(plain.flatten().tolist())
