"""Copies between a batch's flat list of KV cache slots and the table of slots by request.

Both walk the requests of a batch: request r owns the columns start[r]:end[r] of its row, and the next end[r] - start[r]
entries of the flat list. The signatures are SGLang's; `pool_len` (row length) is not needed here.
"""

from collections.abc import Iterator

import torch


def assign_req_to_token_pool_cpu(rows, table, start, end, slots, pool_len) -> None:
    """Write the flat `slots` [tokens] into `table` [requests, row length]."""
    for row, columns, flat in _spans(rows, start, end):
        table[row, columns] = slots[flat].to(table.dtype)


def assign_extend_cache_locs_cpu(rows, table, start, end, slots, pool_len) -> None:
    """Read `table` [requests, row length] into the flat `slots` [tokens]."""
    for row, columns, flat in _spans(rows, start, end):
        slots[flat] = table[row, columns].to(slots.dtype)


def _spans(rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> Iterator[tuple[int, slice, slice]]:
    position = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        yield row, slice(first, last), slice(position, position + last - first)
        position += last - first
