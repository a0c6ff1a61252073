"""The hash behind seeded sampling: MurmurHash3 (x86, 32 bit) of seed, position and token id.

SGLang adds Gumbel noise made from this hash to the log-probabilities and takes the largest, so that a token depends on
its request's seed and position only. PyTorch has no unsigned shifts and products: 32-bit words live in int64 here.
"""

import torch

WORD = 0xFFFFFFFF


def murmur_hash32(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Hash of the 16 bytes (seed: 8, position: 4, column: 4, little-endian).

    Args:
        seeds: [rows] uint64. positions: [rows] integers. columns: [columns] integers.
    Returns:
        [rows, columns] uint32.
    """
    seeds = seeds.view(torch.int64)
    state = torch.zeros_like(seeds)
    for block in (seeds & WORD, (seeds >> 32) & WORD, positions.to(torch.int64) & WORD):
        state = _mix(state, block)
    state = _mix(state[:, None], (columns.to(torch.int64) & WORD)[None, :])
    return _finish(state ^ 16).to(torch.uint32)


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = (_rotate((block * 0xCC9E2D51) & WORD, 15) * 0x1B873593) & WORD
    return (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & WORD


def _rotate(word: torch.Tensor, bits: int) -> torch.Tensor:
    return ((word << bits) | (word >> (32 - bits))) & WORD


def _finish(state: torch.Tensor) -> torch.Tensor:
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & WORD
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & WORD
    return state ^ (state >> 16)
