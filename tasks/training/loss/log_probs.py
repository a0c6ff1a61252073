"""Log-probs and entropies from vocabulary-parallel logits, a few rows at a time: no float32 copy of the logits."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

LEAST_CHUNK, CHUNKS = 2**20, 64  # logits that are in float32 at one time: this many, or this part of them if more


def log_probs_and_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    rows: Tensor | None = None,
    columns: int | None = None,
    group: ProcessGroup | None = None,
    keep_logits: bool = False,
    chunk_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax(logits / temperature) at the targets, and the entropy of that softmax in nats, both differentiable.

    Statistics are in float32 (in float64 for float64 logits). Beyond the logits, memory is a few chunks: backward
    computes the softmax again and writes the gradient over the logits, which nothing else reads after the forward pass
    (an output layer's own backward does not; autograd refuses where one does). Leaves are not overwritten: their
    gradient takes as much again. The gradient is exact; it is not differentiable itself.

    Args:
        logits: [tokens, vocabulary], or this rank's equal share of the vocabulary, in order of the ranks of `group`.
        targets: [chosen] token ids in the whole vocabulary.
        temperature: above 0; the rollout's sampling temperature.
        rows: [chosen] the tokens that are asked for, each once; all of them by default.
        columns: how many of the logits' columns are tokens; the rest only fills up the share. All by default.
        group: tensor-parallel ranks; every rank gets the same results.
        keep_logits: do not overwrite the logits.
    Returns:
        ([chosen], [chosen]) float32 or float64.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: it has to be above 0")
    elements = max(LEAST_CHUNK, logits.numel() // CHUNKS) if chunk_elements is None else chunk_elements
    chunk = max(1, elements // max(logits.shape[-1], 1))
    form = _Form(temperature, columns, group, keep_logits or logits.is_leaf, chunk)
    return _ChunkedLogProbs.apply(logits, targets, rows, form)  # type: ignore[return-value]


@dataclass(frozen=True)
class _Form:
    """What is not a tensor."""

    temperature: float
    columns: int | None
    group: ProcessGroup | None
    keep_logits: bool
    chunk: int

    def parts(self, count: int, rows: Tensor | None) -> Iterator[tuple[slice, slice | Tensor]]:
        """Chunks of the chosen tokens, and the rows of the logits that they are."""
        for start in range(0, count, self.chunk):
            part = slice(start, min(start + self.chunk, count))
            yield part, part if rows is None else rows[part]

    def chosen(self, logits: Tensor, at: slice | Tensor) -> Tensor:
        return logits[at][:, : self.columns]


def _statistics(
    logits: Tensor, local: Tensor, temperature: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[rows] each: the largest score, and relative to it sum of exp, sum of exp * score, and the target's score."""
    scores = logits.to(dtype) / temperature
    largest = scores.amax(-1)
    scores = scores - largest[:, None]
    weights = scores.exp()
    return largest, weights.sum(-1), (weights * scores).sum(-1), scores.gather(-1, local[:, None])[:, 0]


def _gradient(
    logits: Tensor,
    log_normaliser: Tensor,
    to_log_probs: Tensor,
    at_target: Tensor,
    local: Tensor,
    of_entropy: tuple[Tensor, Tensor] | None,
    temperature: float,
) -> Tensor:
    """[rows, columns] gradient of the logits, in their dtype. Others are [rows, 1]: `at_target` is the log-prob's
    gradient where the target is of this share and 0 elsewhere, `of_entropy` the entropy and its gradient."""
    log_p = logits.to(log_normaliser.dtype) / temperature - log_normaliser
    down = to_log_probs
    if of_entropy is not None:  # d entropy / d score = -p (log p + entropy)
        entropy, to_entropy = of_entropy
        down = (log_p + entropy) * to_entropy + to_log_probs
    columns = torch.arange(logits.shape[-1], device=logits.device)
    upward = torch.where(columns == local, at_target, 0.0)
    return ((upward - log_p.exp() * down) / temperature).to(logits.dtype)


@functools.cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same in few kernels. Rows vary from call to call."""
    return torch.compile(function, dynamic=True)


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, rows: Tensor | None, form: _Form):
        here, local = _local_targets(targets, logits.shape[-1], form.group)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        largest, total, mean, chosen = (torch.empty(len(targets), dtype=dtype, device=logits.device) for _ in range(4))
        statistics = _fused(_statistics) if logits.is_cuda else _statistics
        for part, at in form.parts(len(targets), rows):
            found = statistics(form.chosen(logits, at), local[part], form.temperature, dtype)
            for target, values in zip((largest, total, mean, chosen), found, strict=True):
                target[part] = values
        if form.group is not None:
            _combine(largest, total, mean, chosen, here, form.group)
        log_total = total.log()
        log_probs, entropy = chosen - log_total, log_total - mean / total
        ctx.save_for_backward(logits, rows, here, local, largest + log_total, entropy)
        ctx.form = form
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None):  # type: ignore[override]
        grad_log_probs, grad_entropy = grads
        logits, rows, here, local, log_normaliser, entropy = ctx.saved_tensors
        form: _Form = ctx.form
        # Written through a detached view: autograd must not take the overwritten logits for a forward operation.
        result = torch.empty_like(logits) if form.keep_logits else logits.detach()
        zero = torch.zeros_like(entropy)
        to_log_probs = zero if grad_log_probs is None else grad_log_probs
        at_target = torch.where(here, to_log_probs, zero)
        gradient = _fused(_gradient) if logits.is_cuda else _gradient
        for part, at in form.parts(len(entropy), rows):
            result[at, : form.columns] = gradient(
                form.chosen(logits, at),
                log_normaliser[part, None],
                to_log_probs[part, None],
                at_target[part, None],
                local[part, None],
                None if grad_entropy is None else (entropy[part, None], grad_entropy[part, None]),
                form.temperature,
            )
        if form.columns is not None:
            result[:, form.columns :] = 0
        if rows is not None:
            other = torch.ones(len(logits), dtype=torch.bool, device=logits.device).index_fill_(0, rows, False)
            result.index_fill_(0, other.nonzero()[:, 0], 0)
        return result, None, None, None


def _local_targets(targets: Tensor, share: int, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Which targets lie in this rank's share of the vocabulary, and their column in it (0 where they do not)."""
    first = 0 if group is None else torch.distributed.get_rank(group) * share
    here = (targets >= first) & (targets < first + share)
    return here, torch.where(here, targets - first, 0)


def _combine(largest: Tensor, total: Tensor, mean: Tensor, chosen: Tensor, here: Tensor, group: ProcessGroup) -> None:
    """In place: each rank's sums, relative to its own largest score, become those of the whole vocabulary."""
    local = largest.clone()
    all_reduce(largest, ReduceOp.MAX, group=group)
    below = local - largest
    scale = below.exp()
    sums = torch.stack([total * scale, (mean + total * below) * scale, torch.where(here, chosen + below, 0)])
    all_reduce(sums, ReduceOp.SUM, group=group)
    for target, value in zip((total, mean, chosen), sums, strict=True):
        target.copy_(value)
