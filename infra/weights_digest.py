"""The digest of a model's weights, computed where the weights are: on a GPU it takes milliseconds, not seconds.

It is the sha256 over sorted names, shapes and a fingerprint of the values as float32: weights of equal digests are
equal to the bit, whatever type carries them. Trainer and engine both compute it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 2**20  # elements that are added up with the same multipliers
WORDS = 2  # independent 64-bit sums of each block
BLOCKS_AT_ONCE = {"cpu": 4, "cuda": 16}  # whose products are in memory at the same time: 8 MiB each


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The digest of named tensors, as 64 hexadecimal digits; their order does not matter."""
    names = sorted(tensors)
    total = hashlib.sha256(repr([(name, list(tensors[name].shape)) for name in names]).encode())
    total.update(fingerprint([tensors[name] for name in names]).numpy().tobytes())
    return total.hexdigest()


@torch.no_grad()
def fingerprint(tensors: Sequence[Tensor]) -> Tensor:
    """[blocks, WORDS] int64: of the tensors' elements, one behind the other and cut into blocks, for each block
    sum_i bits(x_i) * multiplier_i modulo 2^64, where bits is what float32 stores x_i as.

    Integer sums do not depend on the order of addition, so a GPU gives the same as a CPU. Multilinear hashing (Lemire
    and Kaser, arXiv:1202.4961): values that differ by accident agree in both words with probability 2^-64 at most.
    """
    sums = [_sums(part.float().view(torch.int32)) for part in _parts(tensors)]
    return torch.cat(sums).cpu() if sums else torch.zeros(0, WORDS, dtype=torch.int64)


def _parts(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The elements of all tensors in flat pieces, of whole blocks but for the last."""
    held: list[Tensor] = []
    size = 0
    for tensor in tensors:
        flat, most = tensor.reshape(-1), BLOCK * BLOCKS_AT_ONCE[tensor.device.type]
        while size + len(flat) >= most:
            head, flat = flat[: most - size], flat[most - size :]
            yield torch.cat([*held, head]) if held else head
            held, size = [], 0
        if len(flat):
            held.append(flat)
            size += len(flat)
    if held:
        yield torch.cat(held)


def _sums(bits: Tensor) -> Tensor:
    multipliers = _multipliers_on(bits.device)
    whole = len(bits) // BLOCK * BLOCK
    rows = [bits[:whole].view(-1, BLOCK), bits[whole:].view(1, -1)]
    return torch.cat([_block_sums(r.long(), multipliers[:, : r.shape[1]]) for r in rows if r.numel()])


def _block_sums(blocks: Tensor, multipliers: Tensor) -> Tensor:
    if blocks.is_cuda:  # which has no dot product of integers; on a CPU it is five times as fast
        return torch.stack([(blocks * row).sum(1) for row in multipliers], 1)
    return torch.stack([torch.stack([block.dot(row) for row in multipliers]) for block in blocks])


@lru_cache
def _multipliers_on(device: torch.device) -> Tensor:
    return torch.from_numpy(multipliers()).to(device)


def multipliers() -> NDArray[np.int64]:
    """[WORDS, BLOCK] odd numbers: SplitMix64 (Steele et al., OOPSLA 2014) of 0, 1, 2, ..., its lowest bit set."""
    z = (np.arange(WORDS * BLOCK, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64).reshape(WORDS, BLOCK)
