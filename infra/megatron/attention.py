"""Causal attention over packed sequences for Megatron's local layer spec, on CPU and CUDA, no Transformer Engine."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from infra.megatron.groups import context_group
from infra.megatron.packing import zigzag_order
from infra.megatron.rotary import PackedSequences, rotate

VARLEN_DTYPES = (torch.bfloat16, torch.float16)


class PackedAttention(MegatronModule):
    """`core_attention` of a layer: each packed sequence attends to itself only, causally, by rotary positions.

    With context parallelism keys and values of all ranks are gathered and each rank's queries see the positions up
    to their own.
    """

    def __init__(self, config: TransformerConfig, *_: Any, softmax_scale: float | None = None, **__: Any):
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: PackedSequences, **__: Any
    ) -> Tensor:
        """query [tokens, heads, head_dim], key and value [tokens, groups, head_dim] -> [tokens, heads, head_dim]."""
        assert packed_seq_params.rotation is not None, "run_model gives it"
        query, key = rotate(query, packed_seq_params.rotation), rotate(key, packed_seq_params.rotation)
        bounds = packed_seq_params.cu_seqlens_q
        if self.config.context_parallel_size > 1:
            return self._over_context_ranks(query, key, value, bounds.tolist())
        if query.is_cuda and query.dtype in VARLEN_DTYPES:
            return self._varlen(query, key, value, packed_seq_params)
        segments = [
            _causal(query[a:b], key[a:b], value[a:b], None, self.scale) for a, b in itertools.pairwise(bounds.tolist())
        ]
        return torch.cat(segments)

    def _varlen(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedSequences) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        bounds, longest = packed.cu_seqlens_q, packed.max_seqlen_q
        causal = (-1, 0)
        return varlen_attn(  # type: ignore[return-value]
            query, key, value, bounds, bounds, longest, longest, scale=self.scale, window_size=causal
        )

    def _over_context_ranks(self, query: Tensor, key: Tensor, value: Tensor, bounds: list[int]) -> Tensor:
        """`bounds` are of the whole sequences; this rank holds two chunks of each (see `packing.zigzag_order`)."""
        group = context_group()
        size = group.size()
        order = zigzag_order(bounds, size).to(query.device)
        here = order.chunk(size)[group.rank()]
        everyone = [
            tensor_parallel.gather_from_sequence_parallel_region(x.contiguous(), True, group) for x in (key, value)
        ]
        key, value = (x[torch.argsort(order)] for x in everyone)
        outputs = []
        for a, b in itertools.pairwise(bounds):
            rows = slice(a // size, b // size)
            visible = torch.arange(a, b, device=query.device)[None, :] <= here[rows, None]
            outputs.append(_causal(query[rows], key[a:b], value[a:b], visible, self.scale))
        return torch.cat(outputs)


def _causal(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scale: float | None) -> Tensor:
    """One sequence, [tokens, heads, head_dim]; `visible` [queries, keys] replaces the causal triangle."""
    grouped = query.shape[1] != key.shape[1]
    batch = [x.transpose(0, 1).unsqueeze(0) for x in (query, key, value)]
    out = F.scaled_dot_product_attention(
        *batch, attn_mask=visible, is_causal=visible is None, scale=scale, enable_gqa=grouped
    )
    return out.squeeze(0).transpose(0, 1)
