"""What an engine does with pushed weights: SGLang calls `load` in the server (`--custom-weight-loader`).

A message says which tensors these are and what digest they have. The tensors themselves come in one of three ways: in
a buffer of the message, where they lie one behind the other (what shares memory is opened once, however many they are),
in a file, or by a broadcast to all that joined a process group.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from infra.sglang.weight_group import Membership, received
from infra.weights_digest import digest

LOADER = "infra.sglang.load_weights.load"
CONTENTS, BUFFER = "fanline.contents", "fanline.buffer"
ALIGNED = 256  # bytes that tensors begin at multiples of

Named = Sequence[tuple[str, Tensor]]


def packed(named: Named) -> list[tuple[str, Tensor]]:
    """Copies of the tensors in one new buffer on their device, and what it holds, for `load`.

    Copies: an engine may keep the memory, and the trainer goes on to change its own.
    """
    sizes = [tensor.numel() * tensor.element_size() for _, tensor in named]
    starts = [0, *itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
    buffer = torch.empty(starts[-1], dtype=torch.uint8, device=named[0][1].device)
    places = [
        {"name": name, "start": start, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        for (name, tensor), start in zip(named, starts, strict=False)
    ]
    copies = _unpacked(buffer, places)
    for (_, copy), (_, tensor) in zip(copies, named, strict=True):
        copy.copy_(tensor)
    return [(CONTENTS, _contents(digest(dict(copies)), tensors=places)), (BUFFER, buffer)]


def in_file(named: Named, path: str) -> list[tuple[str, Tensor]]:
    """The message for `load` that these tensors lie in a safetensors file."""
    return [(CONTENTS, _contents(digest(dict(named)), file=path))]


def broadcast_to(message: Named, member: Membership) -> list[tuple[str, Tensor]]:
    """A message of `packed` for a server that gets its buffer by broadcast, as this member of the group."""
    (_, contents), (_, buffer) = message
    told = {**json.loads(bytes(contents.numpy())), "bytes": len(buffer), "group": member.to_dict()}
    return [(CONTENTS, _as_tensor(told))]


def load(model: Any, named: Named) -> None:
    """Load pushed tensors into the model, if they are the ones that were sent.

    Raises:
        ValueError: what arrived has another digest. The server ends, and is started again with whole weights.
    """
    got = dict(named)
    contents = json.loads(bytes(got[CONTENTS].cpu().numpy()))
    if file := contents.get("file"):
        tensors = list(load_file(file).items())
    else:
        buffer = got[BUFFER] if BUFFER in got else _by_broadcast(model, contents)
        tensors = _unpacked(buffer, contents["tensors"])
    if (arrived := digest(dict(tensors))) != contents["digest"]:
        raise ValueError(f"weights of digest {arrived} arrived, {contents['digest']} were sent")
    model.load_weights(tensors)


def _by_broadcast(model: Any, contents: dict[str, Any]) -> Tensor:
    device = next(model.parameters()).device
    return received(Membership(**contents["group"]), torch.empty(contents["bytes"], dtype=torch.uint8, device=device))


def _contents(own: str, **where: Any) -> Tensor:
    return _as_tensor({"digest": own, **where})


def _as_tensor(contents: dict[str, Any]) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(contents).encode()), dtype=torch.uint8)


def _unpacked(buffer: Tensor, places: Sequence[dict[str, Any]]) -> list[tuple[str, Tensor]]:
    tensors = []
    for place in places:
        dtype, shape = getattr(torch, place["dtype"]), torch.Size(place["shape"])
        flat = buffer[place["start"] : place["start"] + shape.numel() * dtype.itemsize]
        tensors.append((place["name"], flat.view(dtype).view(shape)))
    return tensors
