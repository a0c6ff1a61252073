"""Rotary positions of packed sequences, worked out once for all layers.

Su et al., arXiv:2104.09864, in the form of Hugging Face checkpoints: dimension k of a head turns with k + half of them.
Megatron's own form for packed sequences asks the device for their lengths in every layer, and makes the angles anew.
"""

from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

Rotation = tuple[Tensor, Tensor]


@dataclass
class PackedSequences(PackedSeqParams):
    """Where packed sequences begin and end, and cosine and sine [tokens of this context rank, 1, head_dim] of each
    token's angles."""

    rotation: Rotation | None = None


def rotation(positions: Tensor, *, head_dim: int, base: float, dtype: torch.dtype) -> Rotation:
    """Cosine and sine [tokens, 1, head_dim] in `dtype` of positions [tokens]; the angles are in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    half = torch.outer(positions.float(), 1.0 / base**exponents)
    angles = torch.cat((half, half), dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Queries or keys [tokens, heads, head_dim], turned by the angles of their positions."""
    cosine, sine = by
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine
