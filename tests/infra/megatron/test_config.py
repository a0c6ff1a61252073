"""Which models and layouts the trainer takes, and the exact cut of weights for tensor ranks."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from infra.errors import ConfigurationError
from infra.megatron.config import ModelShape
from infra.megatron.convert import FromHuggingFace
from infra.megatron.layout import Layout
from tests.infra.megatron.samples import VOCABULARY, make_run, write_model


@pytest.mark.parametrize(("family", "tied"), [("qwen2", True), ("qwen2", False), ("llama", True)])
def test_shape_is_read_from_the_model_folder(family: str, tied: bool, tmp_path: Path) -> None:
    shape = ModelShape.read(write_model(tmp_path, family, tied=tied).path)
    assert (shape.layers, shape.heads, shape.groups, shape.head_dim) == (4, 4, 2, 8)
    assert (shape.vocabulary, shape.rope_base, shape.tied_embeddings) == (VOCABULARY, 50_000.0, tied)
    assert shape.qkv_bias is (family == "qwen2")
    assert [shape.padded_vocabulary(n) for n in (1, 2, 4)] == [127, 128, 128]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_type 'linear'"),
        ({"model_type": "qwen3"}, "model_type 'qwen3'"),
    ],
)
def test_a_model_that_would_be_trained_wrong_is_refused(change: dict, words: str, tmp_path: Path) -> None:
    path = write_model(tmp_path).path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigurationError, match=words):
        ModelShape.read(path.parent)


def test_parts_of_tensor_ranks_hold_every_weight_once(tmp_path: Path) -> None:
    folder = write_model(tmp_path).path
    shape, full = ModelShape.read(folder), load_file(folder / "model.safetensors")
    first, second = (FromHuggingFace(full, shape, rank, 2) for rank in range(2))
    name = "decoder.layers.3.self_attention.linear_qkv.weight"
    qkv = torch.cat([first.part(name, 3), second.part(name, 3)]).unflatten(0, (2, 4, 8))
    query = full["model.layers.3.self_attn.q_proj.weight"].unflatten(0, (2, 2, 8))
    assert torch.equal(qkv[:, :2], query)
    assert torch.equal(qkv[:, 3].flatten(0, 1), full["model.layers.3.self_attn.v_proj.weight"])
    fc1 = [p.part("decoder.layers.0.mlp.linear_fc1.weight", 0).chunk(2) for p in (first, second)]
    assert torch.equal(torch.cat([up for _, up in fc1]), full["model.layers.0.mlp.up_proj.weight"])
    embedding = torch.cat([p.part("embedding.word_embeddings.weight", None) for p in (first, second)])
    assert torch.equal(embedding[:VOCABULARY], full["model.embed_tokens.weight"])
    assert not embedding[VOCABULARY:].any()


def test_sequence_parallel_needs_tensor_ranks(tmp_path: Path) -> None:
    run = make_run(tmp_path, sequence_parallel=True)
    with pytest.raises(ConfigurationError, match="sequence_parallel"):
        Layout.of(run.scenario.training)
