"""Packed micro-batches, without a process group."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.megatron.layout import Layout, Place
from infra.megatron.packing import Packer, zigzag_order
from infra.records.plan import PlannedSample
from infra.records.rollouts import read_table
from tests.infra.megatron.samples import make_run, write_rollouts


def packer(folder: Path, layout: Layout, context: int = 0) -> Packer:
    run = make_run(folder)
    table = read_table(run.store, write_rollouts(run).table)
    place = Place(rank=0, data=0, tensor=0, pipeline=0, context=context, first_stage=True, last_stage=True)
    return Packer(table, layout, place, torch.device("cpu"))


def sample(row: int) -> PlannedSample:
    return PlannedSample(row=row, rollout_id=row, sibling=0, weight=1.0)


def test_targets_are_the_responses_and_masks_follow(tmp_path: Path) -> None:
    packed = packer(tmp_path, Layout(data=1))
    rows = packed.table.to_pylist()
    batch = packed.pack([sample(4), sample(1), sample(9)])
    wanted = [rows[r] for r in (4, 1, 9)]
    assert batch.targets.tolist() == [t for r in wanted for t in r["tokens"][-r["response_length"] :]]
    assert batch.mask.tolist() == [m for r in wanted for m in r["loss_mask"]]
    assert [len(x) for x in batch.split(batch.mask)] == [r["response_length"] for r in wanted]
    assert batch.advantages.tolist() == pytest.approx([r["advantage"] for r in wanted])
    inputs = batch.input_ids[0]
    for position, row in zip(batch.response_at.split(list(batch.lengths)), wanted, strict=True):
        assert inputs[position].tolist() == row["tokens"][-row["response_length"] - 1 : -1]


def test_context_ranks_hold_every_token_once(tmp_path: Path) -> None:
    whole = packer(tmp_path, Layout(data=1)).pack([sample(2), sample(7)])
    parts = [
        packer(tmp_path, Layout(data=1, context=2, tensor=2, sequence_parallel=True), context=r).pack(
            [sample(2), sample(7)]
        )
        for r in range(2)
    ]
    everyone = torch.cat([p.input_ids[0] for p in parts])[parts[0].gather]
    assert len(everyone) % 8 == 0
    assert everyone[parts[0].response_at].tolist() == whole.input_ids[0][whole.response_at].tolist()
    assert parts[0].targets.tolist() == parts[1].targets.tolist() == whole.targets.tolist()


def test_micro_batches_of_a_virtual_pipeline_are_equally_long(tmp_path: Path) -> None:
    batches = [[sample(4), sample(1)], [sample(9)], [sample(0), sample(2), sample(3)]]
    plain, filled = (packer(tmp_path, Layout(data=1, virtual=n)).pack_all(batches) for n in (1, 2))
    lengths = [len(b.labels) for b in plain]
    assert len(set(lengths)) > 1 and [len(b.labels) for b in filled] == [max(lengths)] * 3
    assert [b.targets.tolist() for b in filled] == [b.targets.tolist() for b in plain]
    assert [b.input_ids[0][b.response_at].tolist() for b in filled] == [
        b.input_ids[0][b.response_at].tolist() for b in plain
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 4))
def test_zigzag_is_a_permutation_in_equal_shares(chunks: list[int], size: int) -> None:
    lengths = [2 * size * n for n in chunks]
    bounds = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    order = zigzag_order(bounds, size)
    assert sorted(order.tolist()) == list(range(bounds[-1]))
    # Causal attention costs as many query-key pairs on every rank.
    start = torch.repeat_interleave(torch.tensor(bounds[:-1]), torch.tensor(lengths))
    costs = {int((share - start[share]).sum()) for share in order.chunk(size)}
    assert len(costs) == 1
