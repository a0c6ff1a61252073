"""Weights and gradients between Hugging Face names and this rank's part of Megatron's model, exact both ways.

Rules of the two layouts: Megatron keeps query, key and value of each key-value group together in `linear_qkv`, gate and
up projection one after the other in `linear_fc1`, and fills the vocabulary up to a multiple of the tensor ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from infra.errors import ConfigurationError
from infra.megatron.config import ModelShape
from infra.megatron.groups import tensor_group
from infra.megatron.model import ModelParts

EMBEDDING = "embedding.word_embeddings.weight"
HEAD = "output_layer.weight"
FINAL_NORM = "decoder.final_layernorm.weight"
PLAIN = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
}


class FromHuggingFace:
    """Cuts this rank's part out of full tensors: `part(name)` for a parameter name of Megatron's model."""

    def __init__(self, full: Mapping[str, Tensor], shape: ModelShape, tensor_rank: int, tensor_size: int):
        self.full, self.shape, self.rank, self.size = full, shape, tensor_rank, tensor_size

    def part(self, name: str, layer: int | None) -> Tensor:
        """The tensor of one parameter; `layer` is the model's layer number from 0 where the name belongs to a layer."""
        if layer is not None:
            return self._of_layer(name.split(".", 3)[3], f"model.layers.{layer}.")
        if name == FINAL_NORM:
            return self.full["model.norm.weight"]
        tied = name == EMBEDDING or self.shape.tied_embeddings
        return self._vocabulary(self.full["model.embed_tokens.weight" if tied else "lm_head.weight"])

    def _of_layer(self, name: str, prefix: str) -> Tensor:
        if name in PLAIN:
            return self.full[prefix + PLAIN[name]]
        kind = name.rsplit(".", 1)[1]
        if name.startswith("self_attention.linear_qkv."):
            return self._rows(self._grouped(*(self.full[f"{prefix}self_attn.{x}_proj.{kind}"] for x in "qkv")))
        if name == "self_attention.linear_proj.weight":
            return self._columns(self.full[prefix + "self_attn.o_proj.weight"])
        if name == "mlp.linear_fc1.weight":
            return torch.cat([self._rows(self.full[f"{prefix}mlp.{x}_proj.weight"]) for x in ("gate", "up")])
        assert name == "mlp.linear_fc2.weight", name
        return self._columns(self.full[prefix + "mlp.down_proj.weight"])

    def _grouped(self, *qkv: Tensor) -> Tensor:
        groups = self.shape.groups
        parts = [x.reshape(groups, x.shape[0] // groups, *x.shape[1:]) for x in qkv]
        return torch.cat(parts, 1).flatten(0, 1)

    def _vocabulary(self, weight: Tensor) -> Tensor:
        missing = self.shape.padded_vocabulary(self.size) - weight.shape[0]
        return self._rows(torch.cat([weight, weight.new_zeros(missing, weight.shape[1])]))

    def _rows(self, full: Tensor) -> Tensor:
        return full.chunk(self.size, 0)[self.rank]

    def _columns(self, full: Tensor) -> Tensor:
        return full.chunk(self.size, 1)[self.rank]


@torch.no_grad()
def load_huggingface(model: ModelParts, full: Mapping[str, Tensor], shape: ModelShape) -> None:
    """Set every parameter of this rank's model.

    Raises:
        ConfigurationError: a tensor is missing or has another shape than the config says; names it.
    """
    group = tensor_group()
    source = FromHuggingFace(full, shape, group.rank(), group.size())
    for name, parameter in model.named_parameters():
        try:
            part = source.part(model.part_of(name)[1], layer_of(model, name))
        except KeyError as missing:
            raise ConfigurationError(f"The model's weights have no tensor {missing}.", ids=[str(missing)]) from None
        if part.shape != parameter.shape:
            raise ConfigurationError(
                f"{name}: the weights give {list(part.shape)}, the config {list(parameter.shape)}."
            )
        parameter.copy_(part)


def layer_of(model: ModelParts, name: str) -> int | None:
    """The whole model's layer number, from 0, of a parameter of this rank."""
    part, local = model.part_of(name)
    if not local.startswith("decoder.layers."):
        return None
    return part.decoder.layers[int(local.split(".")[2])].layer_number - 1  # type: ignore[operator, union-attr]


def to_huggingface(model: ModelParts, named: Mapping[str, Tensor], shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    """Full tensors under Hugging Face names, one at a time, of this pipeline stage.

    A collective over the tensor ranks. The tied output layer of a last stage is left out: it is the embedding.

    Args:
        named: this rank's parameters, or anything else of their shapes (gradients), by Megatron's names.
    """
    for full_name, part in named.items():
        layer, name = layer_of(model, full_name), model.part_of(full_name)[1]
        if layer is not None:
            yield from _layer_to_huggingface(name.split(".", 3)[3], f"model.layers.{layer}.", part, shape)
        elif name == FINAL_NORM:
            yield "model.norm.weight", part
        elif name == EMBEDDING:
            yield "model.embed_tokens.weight", torch.cat(_all_parts(part))[: shape.vocabulary]
        elif not shape.tied_embeddings:
            yield "lm_head.weight", torch.cat(_all_parts(part))[: shape.vocabulary]


def _layer_to_huggingface(name: str, prefix: str, part: Tensor, shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    kind = name.rsplit(".", 1)[1]
    if name in PLAIN:
        yield prefix + PLAIN[name], part
    elif name.startswith("self_attention.linear_qkv."):
        yield from _split_qkv(torch.cat(_all_parts(part)), lambda x: f"{prefix}self_attn.{x}_proj.{kind}", shape)
    elif name == "self_attention.linear_proj.weight":
        yield prefix + "self_attn.o_proj.weight", torch.cat(_all_parts(part), 1)
    elif name == "mlp.linear_fc1.weight":
        halves = [p.chunk(2) for p in _all_parts(part)]
        yield prefix + "mlp.gate_proj.weight", torch.cat([gate for gate, _ in halves])
        yield prefix + "mlp.up_proj.weight", torch.cat([up for _, up in halves])
    else:
        assert name == "mlp.linear_fc2.weight", name
        yield prefix + "mlp.down_proj.weight", torch.cat(_all_parts(part), 1)


def _split_qkv(full: Tensor, named: Callable[[str], str], shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    queries = shape.heads // shape.groups * shape.head_dim
    grouped = full.unflatten(0, (shape.groups, queries + 2 * shape.head_dim))
    for letter, part in zip("qkv", grouped.split([queries, shape.head_dim, shape.head_dim], 1), strict=True):
        yield named(letter), part.flatten(0, 1)


def _all_parts(part: Tensor) -> list[Tensor]:
    group = tensor_group()
    if group.size() == 1:
        return [part]
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts
