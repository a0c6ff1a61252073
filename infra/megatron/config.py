"""A Hugging Face config of the Qwen2 or Llama family as Megatron-core's TransformerConfig."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.distributed import finalize_model_grads
from megatron.core.transformer.transformer_config import TransformerConfig

from infra.errors import ConfigurationError
from infra.megatron.device import Device
from infra.megatron.layout import Layout

FAMILIES = ("qwen2", "llama")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the trainer needs of a model's config.json, checked to be something that it can train exactly."""

    family: str
    layers: int
    hidden: int
    mlp_hidden: int
    heads: int
    groups: int
    head_dim: int
    vocabulary: int
    positions: int
    rope_base: float
    norm_epsilon: float
    tied_embeddings: bool
    qkv_bias: bool

    @classmethod
    def read(cls, folder: Path) -> ModelShape:
        """Of a model folder in Hugging Face layout.

        Raises:
            ConfigurationError: a family, rope scaling, bias or activation that the trainer does not know.
        """
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)
        _refuse_unknown(config)
        return cls(
            family=config.model_type,
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            mlp_hidden=config.intermediate_size,
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            head_dim=config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            positions=config.max_position_embeddings,
            rope_base=config.rope_parameters["rope_theta"],
            norm_epsilon=config.rms_norm_eps,
            tied_embeddings=config.tie_word_embeddings,
            qkv_bias=config.model_type == "qwen2",
        )

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """Rows of the embedding: the vocabulary filled up so that every tensor rank holds as many."""
        return -(-self.vocabulary // tensor_parallel) * tensor_parallel


def _refuse_unknown(config: Any) -> None:
    values = config.to_dict()
    wrong = []
    if config.model_type not in FAMILIES:
        wrong.append(f"model_type {config.model_type!r} (known: {', '.join(FAMILIES)})")
    if (rope := values.get("rope_parameters", {}).get("rope_type", "default")) != "default":
        wrong.append(f"rope_type {rope!r}")
    if values.get("hidden_act") != "silu":
        wrong.append(f"hidden_act {values.get('hidden_act')!r}")
    wrong += [f"{name}: true" for name in ("attention_bias", "mlp_bias", "use_sliding_window") if values.get(name)]
    if wrong:
        raise ConfigurationError(
            f"The trainer can not train this model: {'; '.join(wrong)}.",
            next_step="Use a plain Qwen2 or Llama model, or extend infra/megatron/config.py and convert.py.",
        )


def _keep(weight: torch.Tensor) -> torch.Tensor:
    return weight


def transformer_config(
    shape: ModelShape, layout: Layout, device: Device, *, recompute: bool = False
) -> TransformerConfig:
    """Megatron's config: no dropout, no fused kernels that need Transformer Engine or Apex, loss divided by count.

    Args:
        recompute: whether activations of a layer are computed again in the backward pass.

    Raises:
        ConfigurationError: the model's heads, groups or layers do not divide by the layout.
    """
    for name, value, parts in (
        ("attention heads", shape.heads, layout.tensor),
        ("key-value heads", shape.groups, layout.tensor),
        ("MLP size", shape.mlp_hidden, layout.tensor),
        ("layers", shape.layers, layout.pipeline * layout.virtual),
    ):
        if value % parts:
            over = "ranks" if name != "layers" or layout.virtual == 1 else "parts of a virtual pipeline"
            raise ConfigurationError(f"{value} {name} do not divide by {parts} {over}.")
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.mlp_hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.groups,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=device.kind == "cpu",
        # Weights are loaded: nothing to draw. The methods still run, since Megatron marks sharded parameters there.
        init_method=_keep,
        output_layer_init_method=_keep,
        embedding_init_method=_keep,
        params_dtype=device.dtype,
        bf16=device.dtype == torch.bfloat16,
        pipeline_dtype=device.dtype,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
        microbatch_group_size_per_vp_stage=layout.microbatch_multiple if layout.virtual > 1 else None,
        context_parallel_size=layout.context,
        sequence_parallel=layout.sequence_parallel,
        # Micro-batches of a pipeline differ in their number of packed tokens; those of a virtual one must not: with two
        # stages Megatron-core 0.16.1 mixes up the shapes that go both ways, and waits forever where all are in warm-up.
        variable_seq_lengths=layout.pipeline > 1 and layout.virtual == 1,
        moe_token_dispatcher_type="alltoall",  # of no use here, but checked beside variable_seq_lengths
        batch_p2p_comm=False,
        deallocate_pipeline_outputs=True,
        # The loss function returns a sum and a count of rollouts: Megatron divides by the global count.
        calculate_per_token_loss=True,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        finalize_model_grads_func=finalize_model_grads,
        bias_activation_fusion=device.kind == "cuda",  # by torch.compile: SwiGLU in one kernel instead of four
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        cross_entropy_loss_fusion=False,
    )
