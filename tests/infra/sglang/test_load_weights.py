"""Pushed weights on their way into a server's model."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from infra.sglang.load_weights import BUFFER, in_file, load, message, packed


class Model:
    def __init__(self):
        self.loaded: list[tuple[str, torch.Tensor]] = []

    def load_weights(self, named: list[tuple[str, torch.Tensor]]) -> None:
        self.loaded = named


NAMED = [
    ("a", torch.randn(3, 5)),
    ("b", torch.randn(7).bfloat16()),
    ("c", torch.arange(4)),
    ("d", torch.randn(4, 6).t()),
]


def test_what_is_packed_is_loaded():
    model = Model()
    load(model, message(*packed(NAMED)))
    assert [name for name, _ in model.loaded] == ["a", "b", "c", "d"]
    for (_, got), (_, sent) in zip(model.loaded, NAMED, strict=True):
        assert got.dtype == sent.dtype and torch.equal(got, sent)


def test_the_buffer_holds_copies():
    weight = torch.ones(4)
    sent = message(*packed([("w", weight)]))
    weight.zero_()
    model = Model()
    load(model, sent)
    assert model.loaded[0][1].tolist() == [1.0] * 4


@pytest.mark.parametrize("at", [0, 20, 70])
def test_a_byte_that_changed_on_the_way_is_refused_and_nothing_is_loaded(at: int):
    model, sent = Model(), message(*packed([("a", torch.randn(20))]))
    dict(sent)[BUFFER][at] ^= 1
    with pytest.raises(ValueError, match=r"weights of digest \w{64} arrived, \w{64} were sent"):
        load(model, sent)
    assert model.loaded == []


def test_what_lies_in_a_file_is_loaded_unless_it_changed(tmp_path: Path):
    model, named = Model(), [(name, tensor.contiguous()) for name, tensor in NAMED]
    save_file(dict(named), path := tmp_path / "part.safetensors")
    sent = message(in_file(named, str(path)))
    load(model, sent)
    assert all(torch.equal(dict(named)[name], tensor) for name, tensor in model.loaded) and len(model.loaded) == 4

    model = Model()
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(ValueError, match=r"weights of digest \w{64} arrived, \w{64} were sent"):
        load(model, sent)
    assert model.loaded == []
