"""The step's unclipped gradient: its global norm, and the whole of it under Hugging Face names."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from megatron.core.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from infra.megatron.config import ModelShape
from infra.megatron.model import ModelParts
from infra.megatron.optimizer import Optimizer
from infra.megatron.weights import gather


def unclipped_norm(model: ModelParts, optimizer: Optimizer) -> float:
    """L2 norm over all parameters in float64, from the reduced shards, before the optimizer clips them.

    A collective over all ranks. Copies of a parameter (norms on tensor ranks, the tied embedding of the last stage)
    count once.
    """
    total = torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)
    for shard in optimizer.owned(model):
        parameter: Any = shard.parameter
        if param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter):
            part: Tensor = parameter.main_grad.view(-1)[shard.start : shard.end]
            total += part.double().square().sum()
    dist.all_reduce(total)
    return math.sqrt(total.item())


def whole_gradient(wrapped: list[DistributedDataParallel], model: ModelParts, shape: ModelShape) -> dict[str, Tensor]:
    """The unclipped gradient, [parameter shape] float32 by Hugging Face name; a collective over all ranks.

    With the distributed optimizer a rank's buffer is reduced on the rank's own shard only: gather all shards first.
    What lies outside the own shard is no input of the optimizer.
    """
    for bucket_group in (group for part in wrapped for group in part.bucket_groups):
        ranks = bucket_group.intra_distributed_optimizer_instance_group
        for bucket in bucket_group.buckets:
            own = bucket.grad_data.view(-1).chunk(ranks.size())[ranks.rank()].clone()
            dist.all_gather_into_tensor(bucket.grad_data.view(-1), own, group=ranks)
    named = {name: parameter.main_grad for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
    return gather(model, named, shape)
