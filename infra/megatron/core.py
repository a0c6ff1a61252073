"""One rank's trainer proper: model, data parallelism and optimizer, as one thing that the rank's tasks work on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel
from safetensors.torch import load_file
from torch import Tensor

from infra.megatron.config import ModelShape, transformer_config
from infra.megatron.convert import load_huggingface
from infra.megatron.device import Device
from infra.megatron.layout import Layout, Place
from infra.megatron.model import ModelParts, build_model, data_parallel
from infra.megatron.optimizer import Optimizer
from infra.megatron.reports import DeviceMemory
from infra.megatron.weights import gather, parameters_of
from infra.weights_digest import digest

if TYPE_CHECKING:
    from infra.scenario.model import Scenario

SEED = 1  # of Megatron's own generators; with dropout 0 nothing draws from them


@dataclass(frozen=True, kw_only=True)
class TrainerCore:
    """Everything of a rank that lives from iteration to iteration. Methods named whole_* are collectives.

    `reference` holds the first weights of this rank's model where the scenario has a KL: those of the model
    folder, on a resumed run too.
    """

    layout: Layout
    place: Place
    device: Device
    shape: ModelShape
    model: ModelParts
    wrapped: list[DistributedDataParallel]
    optimizer: Optimizer
    reference: dict[str, Tensor]

    @classmethod
    def build(cls, scenario: Scenario, layout: Layout, device: Device, folder: Path) -> TrainerCore:
        """Process groups, the model with the weights of `folder`, optimizer. torch.distributed is initialised."""
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
            context_parallel_size=layout.context,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(SEED)
        shape = ModelShape.read(folder)
        config = transformer_config(shape, layout, device, recompute=scenario.training.recompute)
        model = build_model(shape, config, device)
        load_huggingface(model, read_weights(folder), shape)
        wrapped = data_parallel(model, config)
        optimizer = Optimizer(wrapped, scenario.training, device)
        config.grad_scale_func = optimizer.megatron.scale_loss
        first = parameters_of(model) if scenario.training.uses_reference else {}
        return cls(
            reference={name: p.clone().cpu() for name, p in first.items()},
            layout=layout,
            place=Place.of_this_process(),
            device=device,
            shape=shape,
            model=model,
            wrapped=wrapped,
            optimizer=optimizer,
        )

    @contextlib.contextmanager
    def reference_weights(self) -> Iterator[None]:
        """The model with the run's first weights, for the KL; as it is where the scenario has none."""
        mine = {name: p.clone() for name, p in parameters_of(self.model).items() if self.reference}
        self._copy(self.reference)
        try:
            yield
        finally:
            self._copy(mine)

    def _copy(self, weights: Mapping[str, Tensor]) -> None:
        parameters = parameters_of(self.model)
        for name, weight in weights.items():
            parameters[name].copy_(weight)

    def give_back_memory(self) -> DeviceMemory | None:
        """Optimizer state to the host, gradients dropped, until `take_memory`; None and nothing done on a CPU."""
        if self.device.kind == "cpu":
            return None
        for part in self.wrapped:
            part.offload_grad_buffers()
        self.optimizer.to_host()
        return _memory()

    def take_memory(self) -> DeviceMemory | None:
        """Undo `give_back_memory`; the gradients are zero. What the GPU had before; None on a CPU."""
        if self.device.kind == "cpu":
            return None
        before = _memory()
        self.optimizer.to_device()
        for part in self.wrapped:
            part.restore_grad_buffers()
        return before

    def forget_copies(self) -> None:
        """Give the GPU what PyTorch keeps of tensors that are gone: an engine takes its cache next."""
        if self.device.kind == "cuda":
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()

    def whole_weights(self) -> dict[str, Tensor]:
        """Every tensor of the model under its Hugging Face name."""
        return gather(self.model, parameters_of(self.model), self.shape)

    def whole_digest(self) -> str:
        """The digest of the weights, on one rank of each replica of the model; nothing on the others."""
        weights = self.whole_weights()
        return digest(weights) if self.place.tensor == self.place.pipeline == 0 else ""


def _memory() -> DeviceMemory:
    return DeviceMemory(*torch.cuda.mem_get_info())


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All safetensors of a model folder."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors
