"""Megatron's distributed Adam, its learning-rate schedule, and what each data-parallel rank owns of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import megatron.core.optimizer as optimizers
import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from infra.megatron.cpu import cuda_type_names
from infra.megatron.device import Device
from infra.megatron.model import ModelParts
from infra.scenario.training import Training

Held = tuple[tuple[int, str], Tensor, Callable[[Tensor], None]]  # key, tensor, what puts another in its place
FOREVER = 2**62  # rollouts over which the schedule is defined; the rate is constant


@dataclass(frozen=True, kw_only=True)
class OwnedShard:
    """The part of one parameter that this rank's optimizer owns: elements [start, end) of the flattened parameter.

    `main` is the float32 master part: with float32 parameters a view of the parameter itself.
    """

    name: str
    parameter: Tensor
    main: Tensor
    start: int
    end: int


class Optimizer:
    """The optimizer of this rank. `rollouts` counts what the schedule has advanced by."""

    def __init__(self, wrapped: list[DistributedDataParallel], training: Training, device: Device):
        config = OptimizerConfig(
            optimizer="adam",
            lr=training.learning_rate,
            min_lr=training.learning_rate,
            weight_decay=training.weight_decay,
            adam_beta1=training.adam_beta1,
            adam_beta2=training.adam_beta2,
            clip_grad=training.clip_grad,
            bf16=device.dtype == torch.bfloat16,
            params_dtype=device.dtype,
            use_distributed_optimizer=True,
            decoupled_weight_decay=True,
        )
        self.wrapped = wrapped
        self.own_master_parts = device.dtype != torch.float32
        self._pinned: dict[tuple[int, str], Tensor] = {}
        # Where Transformer Engine or Apex is installed Megatron takes their Adam, which keeps its step elsewhere: a
        # resumed run would start over with the correction for the first steps.
        optimizers.USING_PYTORCH_OPTIMIZER = True
        with cuda_type_names():
            chained: Any = get_megatron_optimizer(config, [*wrapped])
        (self.distributed,) = chained.chained_optimizers
        assert isinstance(self.distributed, DistributedOptimizer)
        self.megatron = chained
        self.schedule = OptimizerParamScheduler(
            chained,
            init_lr=training.learning_rate,
            max_lr=training.learning_rate,
            min_lr=training.learning_rate,
            lr_warmup_steps=0,
            lr_decay_steps=FOREVER,
            lr_decay_style="constant",
            start_wd=training.weight_decay,
            end_wd=training.weight_decay,
            wd_incr_steps=FOREVER,
            wd_incr_style="constant",
        )

    @property
    def rollouts(self) -> int:
        return self.schedule.num_steps

    @property
    def learning_rate(self) -> float:
        return self.megatron.param_groups[0]["lr"]

    def zero_gradients(self) -> None:
        """Both the buffers that gradients are reduced in and the optimizer's own references to them."""
        for part in self.wrapped:
            part.zero_grad_buffer()
        self.megatron.zero_grad()

    def step(self, rollouts: int) -> None:
        """One Adam step; the schedule advances by the step's rollouts."""
        with cuda_type_names():
            taken, _, _ = self.megatron.step()
        assert taken, "Megatron skipped a step whose gradient is finite"
        self.schedule.step(increment=rollouts)

    def owned(self, model: ModelParts) -> Iterator[OwnedShard]:
        """What this rank owns, in the order of the model's parameters."""
        for name, parameter in model.named_parameters():
            if parameter not in self.distributed.model_param_group_index_map:
                continue
            group, order = self.distributed.model_param_group_index_map[parameter]
            place = self.distributed._get_model_param_range_map(parameter)["param"]
            main = self.distributed.optimizer.param_groups[group]["params"][order]
            yield OwnedShard(name=name, parameter=parameter, main=main, start=place.start, end=place.end)

    def moments(self, shard: OwnedShard) -> dict[str, Tensor]:
        """Adam's `exp_avg`, `exp_avg_sq` and `step` of a shard; empty before the first step."""
        return dict(self.distributed.optimizer.state.get(shard.main, {}))

    def set_moments(self, shard: OwnedShard, moments: dict[str, Tensor]) -> None:
        # Each shard gets a step tensor of its own: Adam counts it up in place, a shared one would count every shard.
        self.distributed.optimizer.state[shard.main] = {name: value.clone() for name, value in moments.items()}

    def to_host(self) -> None:
        """Master parts and moments into pinned host memory, which is kept for the next time; for CUDA only."""
        for key, tensor, put in self._held():
            if not tensor.is_cuda:
                continue
            if key not in self._pinned:
                self._pinned[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            put(self._pinned[key].copy_(tensor, non_blocking=True))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def to_device(self) -> None:
        """Undo `to_host`."""
        device = next(iter(self.wrapped[0].parameters())).device
        for key, tensor, put in self._held():
            if key in self._pinned and not tensor.is_cuda:
                put(tensor.to(device, non_blocking=True))
        torch.cuda.synchronize()

    def _held(self) -> Iterator[Held]:
        """All that the optimizer holds and the model does not: float32 parameters are their own master parts."""
        inner = self.distributed.optimizer
        for number, main in enumerate(main for group in inner.param_groups for main in group["params"]):
            if self.own_master_parts:
                yield (number, "master"), main.data, lambda new, main=main: setattr(main, "data", new)
            moments = inner.state.get(main, {})
            for name in list(moments):
                if isinstance(moments[name], Tensor):
                    yield (number, name), moments[name], lambda new, at=moments, name=name: at.update({name: new})

    def publish_parameters(self) -> None:
        """Carry the master parts into the model's parameters, on all data-parallel ranks."""
        self.distributed._copy_main_params_to_model_params()
        for part in self.wrapped:
            part.start_param_sync(force_sync=True)
