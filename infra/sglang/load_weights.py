"""What an engine does with pushed weights: SGLang calls `load` in the server (`--custom-weight-loader`).

A message says which tensors these are and what digest they have. The tensors themselves come in one of three ways: in
a buffer of the message, where they lie one behind the other (what shares memory is opened once, however many they are),
in a file, or by a broadcast to all that joined a process group.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
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
Contents = dict[str, Any]


def packed(named: Named) -> tuple[Contents, Tensor]:
    """Copies of the tensors in one new buffer on their device, and what it holds.

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
    return {"digest": digest(dict(copies)), "tensors": places}, buffer


def in_file(named: Named, path: str) -> Contents:
    """That these tensors lie in a safetensors file."""
    return {"digest": digest(dict(named)), "file": path}


def by_broadcast(contents: Contents, size: int, member: Membership, number: int) -> Contents:
    """Those of a buffer of so many bytes that this member of a group gets by its broadcast `number`."""
    return {**contents, "bytes": size, "member": asdict(member), "number": number}


def message(contents: Contents, buffer: Tensor | None = None) -> list[tuple[str, Tensor]]:
    """What `load` is called with."""
    told = torch.frombuffer(bytearray(json.dumps(contents).encode()), dtype=torch.uint8)
    return [(CONTENTS, told), *([] if buffer is None else [(BUFFER, buffer)])]


def load(model: Any, named: Named) -> None:
    """Load pushed tensors into the model, if they are the ones that were sent; nothing where a broadcast is called off.

    Raises:
        ValueError: what arrived has another digest. The server ends, and is started again with whole weights.
    """
    got = dict(named)
    contents = json.loads(bytes(got[CONTENTS].cpu().numpy()))
    if "file" in contents:
        tensors = list(load_file(contents["file"]).items())
    else:
        buffer = got[BUFFER] if BUFFER in got else _received(model, contents)
        if buffer is None:
            return
        tensors = _unpacked(buffer, contents["tensors"])
    if (arrived := digest(dict(tensors))) != contents["digest"]:
        raise ValueError(f"weights of digest {arrived} arrived, {contents['digest']} were sent")
    model.load_weights(tensors)


def _received(model: Any, contents: Contents) -> Tensor | None:
    device = next(model.parameters()).device
    return received(Membership(**contents["member"]), contents["number"], contents["bytes"], device)


def _unpacked(buffer: Tensor, places: Sequence[dict[str, Any]]) -> list[tuple[str, Tensor]]:
    tensors = []
    for place in places:
        dtype, shape = getattr(torch, place["dtype"]), torch.Size(place["shape"])
        flat = buffer[place["start"] : place["start"] + shape.numel() * dtype.itemsize]
        tensors.append((place["name"], flat.view(dtype).view(shape)))
    return tensors
