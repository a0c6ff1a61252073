"""What a sample costs to train: forward FLOPs from the model's shape. Attention grows with the square of the length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Cost = Callable[[ArrayLike], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a dense decoder that its FLOPs depend on.

    Args:
        mlp_matrices: weight matrices of the MLP: 3 with a gate (Llama, Qwen2), 2 without.

    Example: ModelShape.from_config({"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, ...})
    """

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    mlp_matrices: int = 3

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """The shape from a Hugging Face `config.json`."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            mlp=config["intermediate_size"],
            vocabulary=config["vocab_size"],
        )

    def forward_flops(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """[sequences] forward FLOPs of sequences of these lengths; of packed sequences they add up.

        A matrix product of m x k and k x n counts 2 m k n; causal attention counts the lower triangle only.
        """
        length = np.asarray(tokens, np.float64)
        query, key_value = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        projections = 2 * self.hidden * (2 * query + 2 * key_value)
        mlp = 2 * self.mlp_matrices * self.hidden * self.mlp
        head = 2 * self.hidden * self.vocabulary
        attention = 2 * query * length * (length + 1)  # scores and values, 2 * 2 * query over length (length + 1) / 2
        return self.layers * ((projections + mlp) * length + attention) + head * length


def token_count(tokens: ArrayLike) -> NDArray[np.float64]:
    """The length itself as the cost."""
    return np.asarray(tokens, np.float64)
