"""What a server holds after a push, tensor by tensor, against what SGLang's own loader makes of the same weights."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from infra.errors import EngineUnavailable
from infra.megatron.weights import post
from infra.sglang.address import ServerAddress


@contextmanager
def pushed_into(servers: Sequence[ServerAddress]) -> Iterator[None]:
    """All tensors of the servers are noise before the push within, and kept by them for `same_as` after it.

    What a push leaves out stays noise.
    """
    for server in servers:
        _check(server, "reset_tensors")
    yield
    keep(servers)


def keep(servers: Sequence[ServerAddress]) -> None:
    """Have the servers remember all their tensors, for `same_as`."""
    for server in servers:
        _check(server, "snapshot")


def same_as(servers: Sequence[ServerAddress], weights: Mapping[str, torch.Tensor], model: Path, folder: Path) -> None:
    """Have each server load these weights from a folder, by SGLang's own loader, and compare every tensor to the bit.

    Args:
        weights: by Hugging Face names, in any type that holds them exactly.
        model: folder of the model, for its config.json.
    Raises:
        EngineUnavailable: names the tensors that differ.
    """
    folder.mkdir(parents=True)
    config = (model / "config.json").read_text()
    dtype = getattr(torch, json.loads(config)["dtype"])
    (folder / "config.json").write_text(config)
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    for server in servers:
        _check(server, "reset_tensors")
        post(server, "/update_weights_from_disk", {"model_path": str(folder), "flush_cache": True})
        _check(server, "compare")


def differ(check: Callable[[], None]) -> bool:
    """Whether a comparison that has to fail did, because tensors differ."""
    try:
        check()
    except EngineUnavailable as found:
        return "tensor equality failed" in str(found)
    return False


def _check(server: ServerAddress, action: str) -> None:
    post(server, "/weights_checker", {"action": action})
