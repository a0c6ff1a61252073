"""The plain PyTorch kernels against independent definitions."""

import importlib
import importlib.util
import struct
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.sglang.cpu.murmur import murmur_hash32
from infra.sglang.cpu.patches import STAND_IN


@pytest.fixture(scope="module")
def kernel() -> Iterator[ModuleType]:
    """The stand-in, imported as the server imports it; not found by other tests."""
    assert importlib.util.find_spec("sgl_kernel") is None
    sys.path.insert(0, str(STAND_IN))
    yield importlib.import_module("sgl_kernel")
    sys.path.remove(str(STAND_IN))
    for name in [name for name in sys.modules if name.split(".")[0] == "sgl_kernel"]:
        del sys.modules[name]


def _murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, as published by Austin Appleby, for whole 4-byte blocks."""
    state = 0
    for (block,) in struct.iter_unpack("<I", data):
        block = block * 0xCC9E2D51 % 2**32
        block = (block << 15 | block >> 17) % 2**32
        state ^= block * 0x1B873593 % 2**32
        state = (state << 13 | state >> 19) % 2**32
        state = (state * 5 + 0xE6546B64) % 2**32
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B % 2**32
    state = (state ^ state >> 13) * 0xC2B2AE35 % 2**32
    return state ^ state >> 16


def test_the_reference_gives_a_published_value():
    assert _murmur3(b"test") == 0xBA6BD213


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=4),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
)
def test_murmur_hashes_seed_position_and_column(rows, columns):
    seeds = torch.tensor([seed for seed, _ in rows], dtype=torch.uint64)
    positions = torch.tensor([position for _, position in rows])
    expected = [[_murmur3(struct.pack("<QII", *row, column)) for column in columns] for row in rows]
    hashed = murmur_hash32(seeds, positions, torch.tensor(columns))
    assert hashed.dtype == torch.uint32
    assert hashed.tolist() == expected


def test_slots_go_into_the_requests_rows_and_come_back(kernel):
    rows, start, end = torch.tensor([2, 0]), torch.tensor([1, 0]), torch.tensor([4, 2])
    slots = torch.tensor([10, 11, 12, 20, 21])
    table = torch.zeros(3, 5, dtype=torch.int32)
    kernel.assign_req_to_token_pool_cpu(rows, table, start, end, slots, 5)
    assert table.tolist() == [[20, 21, 0, 0, 0], [0, 0, 0, 0, 0], [0, 10, 11, 12, 0]]
    back = torch.zeros(5, dtype=torch.int64)
    kernel.assign_extend_cache_locs_cpu(rows, table, start, end, back, 5)
    assert back.tolist() == slots.tolist()


def test_kernels_that_are_not_there_can_be_imported_and_say_so_when_called(kernel):
    with pytest.raises(NotImplementedError, match="fused_experts_cpu"):
        kernel.fused_experts_cpu()
    with pytest.raises(AttributeError):
        _ = kernel.fused_experts
