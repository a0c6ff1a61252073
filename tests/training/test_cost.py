import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.training.cost import ModelShape, token_count

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 32,
}


def test_shape_from_a_config_without_head_dim():
    shape = ModelShape.from_config(CONFIG)
    assert (shape.head_dim, shape.key_value_heads, shape.mlp_matrices) == (2, 2, 3)
    assert ModelShape.from_config({**CONFIG, "head_dim": 16}).head_dim == 16


def test_flops_of_one_sequence_counted_by_hand():
    tokens, shape = 5, ModelShape.from_config(CONFIG)
    projections = 8 * 8 + 2 * 8 * 4 + 8 * 8  # query; key and value; output
    scores = sum(t + 1 for t in range(tokens)) * 4 * 2  # each position against itself and those before
    layer = tokens * (projections + 3 * 8 * 16) + 2 * scores
    assert shape.forward_flops(tokens) == 2 * (2 * layer + tokens * 8 * 32)


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_packed_sequences_cost_less_than_one_of_the_same_tokens(a, b):
    shape = ModelShape.from_config(CONFIG)
    assert shape.forward_flops([a, b]).sum() < shape.forward_flops(a + b)
    assert token_count([a, b]).sum() == pytest.approx(a + b)
