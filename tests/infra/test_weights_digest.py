"""The digest of weights against its definition in plain integers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import infra.weights_digest as made
from infra.weights_digest import digest, fingerprint, multipliers


def by_definition(values: list[float], block: int) -> list[list[int]]:
    """sum_i bits(x_i) * multiplier_i modulo 2^64 of each block, as signed 64-bit numbers."""
    bits = torch.tensor(values, dtype=torch.float32).view(torch.int32).tolist()
    rows = multipliers().tolist()
    sums = []
    for start in range(0, len(bits), block):
        words = [sum(b * m for b, m in zip(bits[start : start + block], row, strict=False)) % 2**64 for row in rows]
        sums.append([w - 2**64 if w >= 2**63 else w for w in words])
    return sums


@given(
    sizes=st.lists(st.integers(0, 9), max_size=6),
    block=st.integers(1, 7),
    at_once=st.integers(1, 3),
    seed=st.integers(),
)
def test_a_fingerprint_is_that_of_all_elements_in_a_row(sizes: list[int], block: int, at_once: int, seed: int):
    draw = torch.Generator().manual_seed(abs(seed) % 2**63)
    tensors = [torch.randn(n, generator=draw) for n in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "BLOCK", block)
        patch.setattr(made, "BLOCKS_AT_ONCE", {"cpu": at_once})
        made._multipliers_on.cache_clear()
        found, wanted = (
            fingerprint(tensors).tolist(),
            by_definition(torch.cat([*tensors, torch.zeros(0)]).tolist(), block),
        )
    made._multipliers_on.cache_clear()
    assert found == wanted


def test_equal_values_have_one_digest_whatever_carries_them():
    values = {"b": torch.randn(3, 40).bfloat16(), "a": torch.arange(5.0)}
    assert digest(values) == digest({"a": values["a"], "b": values["b"].float()})
    assert digest(values) == digest({**values, "b": values["b"].t().contiguous().t()})  # strides are no part of it


@pytest.mark.parametrize("change", ["bit", "name", "shape", "order of values", "sign of zero", "left out"])
def test_any_change_changes_it(change: str):
    before = {"w": torch.linspace(-1, 1, 12).view(3, 4), "zero": torch.zeros(2), "none": torch.zeros(0)}
    after = {name: tensor.clone() for name, tensor in before.items()}
    if change == "bit":
        after["w"].view(torch.int32)[2, 3] ^= 1
    elif change == "name":
        after["v"] = after.pop("w")
    elif change == "shape":
        after["w"] = after["w"].view(4, 3)
    elif change == "order of values":
        after["w"][[0, 1]] = after["w"][[1, 0]].clone()
    elif change == "sign of zero":
        after["zero"][1] = -0.0
    else:
        del after["none"]
    assert digest(after) != digest(before)


def test_multipliers_are_the_same_everywhere():
    assert multipliers()[0, :2].tolist() == [-2152535657050944081, 7960286522194355701]
    assert (multipliers() & 1).all()
