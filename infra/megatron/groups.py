"""Megatron's process groups of this rank, as what they are once they are made."""

from typing import cast

from megatron.core import parallel_state
from torch.distributed import ProcessGroup


def tensor_group() -> ProcessGroup:
    return cast(ProcessGroup, parallel_state.get_tensor_model_parallel_group())


def context_group() -> ProcessGroup:
    return cast(ProcessGroup, parallel_state.get_context_parallel_group())


def pipeline_group() -> ProcessGroup:
    return cast(ProcessGroup, parallel_state.get_pipeline_model_parallel_group())
