"""The model under training: Megatron-core's GPTModel from local layers, wrapped in Megatron's data parallelism."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from infra.megatron.attention import PackedAttention
from infra.megatron.config import ModelShape
from infra.megatron.device import Device


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm that tells Megatron to add up its gradient over the sequence-parallel ranks."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


@dataclass(frozen=True)
class ModelParts:
    """What this rank holds of the model: one part, or with a virtual pipeline several, in the order of their layers.

    A parameter's name is Megatron's; where there are several parts, behind the part's number.
    """

    parts: tuple[GPTModel, ...]

    @property
    def config(self) -> TransformerConfig:
        return self.parts[0].config

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for number, part in enumerate(self.parts):
            before = f"{number}." if len(self.parts) > 1 else ""
            yield from ((before + name, parameter) for name, parameter in part.named_parameters())

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return (parameter for _, parameter in self.named_parameters())

    def part_of(self, name: str) -> tuple[GPTModel, str]:
        """The part that a parameter is in, and its name there."""
        if len(self.parts) == 1:
            return self.parts[0], name
        number, _, local = name.partition(".")
        return self.parts[int(number)], local


def build_model(shape: ModelShape, config: TransformerConfig, device: Device) -> ModelParts:
    """What this rank holds of the model, its weights not yet set."""
    several = config.virtual_pipeline_model_parallel_size
    return ModelParts(tuple(_build_part(shape, config, device, k) for k in (range(several) if several else (None,))))


def _build_part(shape: ModelShape, config: TransformerConfig, device: Device, virtual: int | None) -> GPTModel:
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    parts: Any = layer.submodules
    parts.self_attention.submodules.core_attention = PackedAttention
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    layers = [layer] * get_num_layers_to_build(config, virtual)
    model = GPTModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm),  # type: ignore[arg-type]
        vocab_size=shape.padded_vocabulary(config.tensor_model_parallel_size),
        max_sequence_length=shape.positions,
        pre_process=parallel_state.is_pipeline_first_stage(virtual is None, virtual),
        post_process=parallel_state.is_pipeline_last_stage(virtual is None, virtual),
        vp_stage=virtual,
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type="none",  # rotary positions are the attention's (`infra/megatron/rotary.py`)
    )
    return model.to(device.torch_device)


def data_parallel(model: ModelParts, config: TransformerConfig) -> list[DistributedDataParallel]:
    """Megatron's wrapper of each part: float32 gradients, reduced to the rank's shard for the distributed optimizer."""
    settings = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    return [DistributedDataParallel(config, settings, part) for part in model.parts]
