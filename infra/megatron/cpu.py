"""Megatron-core 0.16 on a CPU: redirect the places in it that name CUDA. Nothing here runs where CUDA is used.

Only modules below `megatron.core` see the redirected `torch`; torch itself stays as it is, but for `Tensor.cuda`, which
gives the tensor back, and `Tensor.type`, whose answer the optimizer compares with CUDA type names.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

_FACTORIES = (
    *("tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "randint"),
    *("zeros_like", "ones_like", "empty_like", "full_like"),
)
_MODULES = (
    "megatron.core",
    "megatron.core.distributed",
    "megatron.core.optimizer",
    "megatron.core.optimizer_param_scheduler",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.pipeline_parallel.p2p_communication",
    "megatron.core.tensor_parallel.random",
)
_CPU = torch.device("cpu")
_redirected = False


class _View(types.ModuleType):
    """A module of which some names are replaced."""

    def __init__(self, real: types.ModuleType, replaced: dict[str, Any]):
        super().__init__(real.__name__)
        self.__dict__.update(replaced, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


class _Stream:
    """A CUDA stream or event of which every method does nothing."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The factory with `device="cuda"` read as the CPU and without pinned memory."""

    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return create


def _torch_on_cpu() -> types.ModuleType:
    names = ("synchronize", "empty_cache", "set_device")
    cuda: dict[str, Any] = dict.fromkeys(names, _nothing)
    cuda.update(
        current_device=lambda: _CPU,
        current_stream=_Stream,
        default_stream=_Stream,
        Stream=_Stream,
        Event=_Stream,
        stream=lambda _: contextlib.nullcontext(),
        get_rng_state=lambda *_, **__: torch.get_rng_state(),
        set_rng_state=lambda state, *_, **__: torch.set_rng_state(state),
        manual_seed=torch.manual_seed,
        memory_allocated=lambda *_: 0,
        max_memory_allocated=lambda *_: 0,
    )
    factories = {name: _on_cpu(getattr(torch, name)) for name in _FACTORIES}
    return _View(torch, {"cuda": _View(torch.cuda, cuda), **factories})


def redirect() -> None:
    """Make Megatron-core of this process run on the CPU. Once is enough; a second call does nothing."""
    global _redirected
    if _redirected:
        return
    for name in _MODULES:
        importlib.import_module(name)
    view = _torch_on_cpu()
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and module.__dict__.get("torch") is torch:
            module.__dict__["torch"] = view
    random = sys.modules["megatron.core.tensor_parallel.random"].__dict__
    random["_get_cuda_rng_state"] = lambda *_, **__: torch.get_rng_state()
    random["_set_cuda_rng_state"] = lambda state, *_, **__: torch.set_rng_state(state)
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    _redirected = True


@contextlib.contextmanager
def cuda_type_names() -> Iterator[None]:
    """Megatron's optimizers sort parameters by `Tensor.type()` and know CUDA names only."""
    if not _redirected:
        yield
        return
    real = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = real(self, *args, **kwargs)
        return name.replace("torch.", "torch.cuda.", 1) if isinstance(name, str) else name

    torch.Tensor.type = type_name  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.type = real  # type: ignore[method-assign]
