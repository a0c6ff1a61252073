"""Planned samples as the packed sequences that one micro-batch runs: token ids, positions and what the loss needs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from infra.megatron.layout import Layout, Place
from infra.megatron.rotary import PackedSequences
from infra.records.plan import PlannedSample


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """One micro-batch: `tokens` packed tokens with padding, `responses` response tokens of all its samples.

    Attributes:
        samples: in packing order.
        input_ids, position_ids: [1, tokens of this context rank].
        labels: [tokens] next token of each position, in the order of the whole sequences.
        here: [tokens of this context rank] their positions in the whole sequences.
        gather: [tokens] where each position of the whole sequences is in the ranks' concatenated chunks.
        response_at: [responses] positions that predict a response token, sample after sample.
        lengths: response tokens of each sample.
        mask: [responses] 0/1 in float32.
        sample_of: [responses] position of the token's sample in `samples`.
        advantages: [samples] float32; NaN where the rollout has none.
    """

    samples: tuple[PlannedSample, ...]
    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    here: Tensor
    gather: Tensor
    response_at: Tensor
    lengths: tuple[int, ...]
    mask: Tensor
    sample_of: Tensor
    advantages: Tensor
    sequences: PackedSequences

    @property
    def targets(self) -> Tensor:
        """[responses] the response tokens."""
        return self.labels[self.response_at]

    def split(self, per_token: Tensor) -> list[Tensor]:
        """[responses] values as one tensor a sample."""
        return list(per_token.split(list(self.lengths)))

    def rollout_ids(self) -> list[int]:
        return sorted({s.rollout_id for s in self.samples})


@dataclass(frozen=True)
class Packer:
    """Packs rows of one rollouts table for one rank."""

    table: pa.Table
    layout: Layout
    place: Place
    device: torch.device

    def pack_all(self, batches: Sequence[Sequence[PlannedSample]]) -> list[PackedBatch]:
        """The micro-batches that one call of the schedule runs; for a virtual pipeline all as long as the longest."""
        if self.layout.virtual == 1:
            return [self.pack(samples) for samples in batches]
        tokens = self.table["tokens"]
        longest = max(sum(self._padded([len(tokens[s.row]) - 1 for s in samples])) for samples in batches)
        return [self.pack(samples, longest) for samples in batches]

    def pack(self, samples: Sequence[PlannedSample], at_least: int = 0) -> PackedBatch:
        """The micro-batch of some samples, which name their rows of the table.

        Args:
            at_least: tokens that it is filled up to.
        """
        rows = self.table.take([s.row for s in samples])
        tokens = rows["tokens"].to_pylist()
        responses = rows["response_length"].to_pylist()
        # A sequence's last token predicts nothing, so it is no input.
        lengths = self._padded([len(t) - 1 for t in tokens], at_least)
        starts = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
        ids, labels = torch.zeros(starts[-1], dtype=torch.long), torch.zeros(starts[-1], dtype=torch.long)
        at: list[int] = []
        for start, sequence, response in zip(starts, tokens, responses, strict=False):
            end = start + len(sequence) - 1
            ids[start:end] = torch.tensor(sequence[:-1])
            labels[start:end] = torch.tensor(sequence[1:])
            at.extend(range(end - response, end))
        positions = torch.cat([torch.arange(n) for n in lengths])
        order = zigzag_order(starts, self.layout.context)
        here = order.chunk(self.layout.context)[self.place.context]
        mask = [m for row in rows["loss_mask"].to_pylist() for m in row]
        advantages = [float("nan") if a is None else a for a in rows["advantage"].to_pylist()]
        to = self.device
        return PackedBatch(
            samples=tuple(samples),
            input_ids=ids[here][None].to(to),
            position_ids=positions[here][None].to(to),
            labels=labels.to(to),
            here=here.to(to),
            gather=torch.argsort(order).to(to),
            response_at=torch.tensor(at, dtype=torch.long, device=to),
            lengths=tuple(responses),
            mask=torch.tensor(mask, dtype=torch.float32, device=to),
            sample_of=torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(responses)).to(to),
            advantages=torch.tensor(advantages, dtype=torch.float32, device=to),
            sequences=self._sequence_bounds(starts, max(lengths)),
        )

    def _padded(self, lengths: list[int], at_least: int = 0) -> list[int]:
        """Context parallelism cuts each sequence in 2 cp chunks; sequence parallelism cuts the packed tokens in tp."""
        layout = self.layout
        unit = 2 * layout.context if layout.context > 1 else 1
        padded = [-(-n // unit) * unit for n in lengths]
        whole = unit * (layout.tensor if layout.sequence_parallel else 1)
        padded[-1] += -sum(padded) % whole
        padded[-1] += max(0, at_least - sum(padded))
        return padded

    def _sequence_bounds(self, starts: list[int], longest: int) -> PackedSequences:
        bounds = torch.tensor(starts, dtype=torch.int32, device=self.device)
        return PackedSequences(
            qkv_format="thd",
            cu_seqlens_q=bounds,
            cu_seqlens_kv=bounds,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )


def zigzag_order(bounds: Sequence[int], size: int) -> Tensor:
    """[tokens] positions in the order in which the context ranks hold them, rank after rank.

    Each sequence is cut into 2 * size chunks; rank r holds chunks r and 2 * size - 1 - r of it, so that causal
    attention costs every rank the same. With size 1 this is the identity.
    """
    held: list[Tensor] = []
    for rank in range(size):
        for start, end in itertools.pairwise(bounds):
            chunks = torch.arange(start, end).chunk(2 * size) if size > 1 else (torch.arange(start, end),)
            held.extend((chunks[rank], chunks[2 * size - 1 - rank]) if size > 1 else chunks)
    return torch.cat(held)
