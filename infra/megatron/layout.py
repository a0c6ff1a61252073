"""How the trainer's ranks share the model and the batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from infra.errors import ConfigurationError
from infra.scenario.training import Training


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parallel sizes. A rank's coordinates follow Megatron's order: tensor fastest, then context, data, pipeline.

    Args:
        virtual: parts of the model that a pipeline rank holds.
        microbatch_multiple: what the number of a rank's micro-batches is a multiple of.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    virtual: int = 1
    microbatch_multiple: int = 1
    sequence_parallel: bool = False

    @classmethod
    def of(cls, training: Training) -> Layout:
        """The layout that a scenario asks for.

        Raises:
            ConfigurationError: sequence parallelism without tensor parallelism.
        """
        if training.sequence_parallel and training.tensor_parallel == 1:
            raise ConfigurationError("training.sequence_parallel needs training.tensor_parallel of at least 2.")
        return cls(
            data=training.data_parallel,
            tensor=training.tensor_parallel,
            pipeline=training.pipeline_parallel,
            context=training.context_parallel,
            virtual=training.virtual_pipeline,
            microbatch_multiple=training.microbatch_multiple,
            sequence_parallel=training.sequence_parallel,
        )

    @property
    def world_size(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    def to_dict(self) -> dict[str, int | bool]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one rank stands in the layout. `leader`: the one rank of its data-parallel share that reports for it."""

    rank: int
    data: int
    tensor: int
    pipeline: int
    context: int
    first_stage: bool
    last_stage: bool

    @property
    def leader(self) -> bool:
        return self.last_stage and self.tensor == 0 and self.context == 0

    @classmethod
    def of_this_process(cls) -> Place:
        """From Megatron's process groups, once they are made."""
        import torch.distributed as dist
        from megatron.core import parallel_state as groups

        return cls(
            rank=dist.get_rank(),
            data=groups.get_data_parallel_rank(),
            tensor=groups.get_tensor_model_parallel_rank(),
            pipeline=groups.get_pipeline_model_parallel_rank(),
            context=groups.get_context_parallel_rank(),
            first_stage=groups.is_pipeline_first_stage(),
            last_stage=groups.is_pipeline_last_stage(),
        )
