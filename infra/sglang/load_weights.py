"""What an engine does with pushed weights: SGLang calls `load` in the server (`--custom-weight-loader`).

The tensors of a push lie one behind the other in one buffer: what shares memory is opened once, however many they are.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infra.weights_digest import digest

LOADER = "infra.sglang.load_weights.load"
CONTENTS, BUFFER = "fanline.contents", "fanline.buffer"
ALIGNED = 256  # bytes that tensors begin at multiples of


def packed(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
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
    contents = json.dumps({"digest": digest(dict(copies)), "tensors": places}).encode()
    return [(CONTENTS, torch.frombuffer(bytearray(contents), dtype=torch.uint8)), (BUFFER, buffer)]


def load(model: Any, named: Sequence[tuple[str, Tensor]]) -> None:
    """Load pushed tensors into the model, if they are the ones that were sent.

    Raises:
        ValueError: what arrived has another digest. The server ends, and is started again with whole weights.
    """
    got = dict(named)
    contents = json.loads(bytes(got[CONTENTS].cpu().numpy()))
    tensors = _unpacked(got[BUFFER], contents["tensors"])
    if (arrived := digest(dict(tensors))) != contents["digest"]:
        raise ValueError(f"weights of digest {arrived} arrived, {contents['digest']} were sent")
    model.load_weights(tensors)


def _unpacked(buffer: Tensor, places: Sequence[dict[str, Any]]) -> list[tuple[str, Tensor]]:
    tensors = []
    for place in places:
        dtype, shape = getattr(torch, place["dtype"]), torch.Size(place["shape"])
        flat = buffer[place["start"] : place["start"] + shape.numel() * dtype.itemsize]
        tensors.append((place["name"], flat.view(dtype).view(shape)))
    return tensors
