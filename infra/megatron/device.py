"""Where the trainer runs: the one place that knows what differs between a CPU and a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infra.errors import ConfigurationError
from infra.scenario.model import Scenario
from infra.settings import settings

if TYPE_CHECKING:
    import torch

Kind = Literal["cpu", "cuda"]


def resolve(scenario: Scenario) -> Kind:
    """`cpu` or `cuda`, from the scenario and this host; on a cluster that is joined, `cuda` is taken at its word.

    Raises:
        ConfigurationError: the scenario asks for CUDA and there is none.
    """
    if scenario.device == "cuda" and settings().ray_address is not None:
        return "cuda"
    import torch

    if scenario.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            "The scenario asks for device cuda, and this host has no CUDA device.",
            next_step="Run it where there is one, or say --set device=cpu.",
        )
    return "cuda" if scenario.device != "cpu" and torch.cuda.is_available() else "cpu"


def dtype_name(scenario: Scenario) -> str:
    """The parameter type that a scenario trains in, on this host."""
    if scenario.dtype != "auto":
        return scenario.dtype
    return "float32" if resolve(scenario) == "cpu" else "bfloat16"


def actor_environment(kind: Kind, *, with_servers: bool = False) -> dict[str, str]:
    """Environment variables of a trainer process.

    Args:
        with_servers: whether it is in a group with SGLang servers, which turn NCCL's cuMem off: members have to agree.
    """
    if kind == "cuda":
        agreed = {"NCCL_CUMEM_ENABLE": "0"} if with_servers else {}
        return {"OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_NVLS_ENABLE": "0", **agreed}
    # Megatron-core compiles its small functions with torch.compile, which needs a C++ compiler on a CPU.
    return {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, kw_only=True)
class Device:
    """A trainer process's device: torch device, parameter type and collective backend."""

    kind: Kind
    torch_device: torch.device
    dtype: torch.dtype
    backend: Literal["gloo", "nccl"]

    @classmethod
    def prepare(cls, kind: Kind, dtype: str, *, deterministic: bool) -> Device:
        """Make this process ready for the device; before anything of Megatron-core runs."""
        import torch

        from infra.megatron import cpu

        if kind == "cpu":
            torch.set_num_threads(1)
            cpu.redirect()
            chosen = torch.float32 if dtype == "auto" else getattr(torch, dtype)
            return cls(kind=kind, torch_device=torch.device("cpu"), dtype=chosen, backend="gloo")
        torch.cuda.set_device(0)
        if deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        chosen = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
        return cls(kind=kind, torch_device=torch.device("cuda", 0), dtype=chosen, backend="nccl")
