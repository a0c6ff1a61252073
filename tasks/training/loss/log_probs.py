"""Log-probs and entropies from vocabulary-parallel logits, a few rows at a time: no float32 copy of the logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, ReduceOp, all_reduce

CHUNK_ELEMENTS = 2**22  # logits that are in float32 at one time


def log_probs_and_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    group: ProcessGroup | None = None,
    reuse_logits: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """log softmax(logits / temperature) at the targets, and the entropy of that softmax in nats, both differentiable.

    Statistics are in float32 (in float64 for float64 logits). Beyond the logits and their gradient, which has their
    dtype, memory is a few chunks. The gradient is exact; it is not differentiable itself.

    Args:
        logits: [tokens, vocabulary], or this rank's equal share of the vocabulary, in order of the ranks of `group`.
        targets: [tokens] token ids in the whole vocabulary.
        temperature: above 0; the rollout's sampling temperature.
        group: tensor-parallel ranks; every rank gets the same results.
        reuse_logits: write the gradient over the logits instead of beside them. Only for logits that nothing else
            reads after the forward pass (the output layer's own backward does not).
    Returns:
        ([tokens], [tokens]) float32 or float64.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: it has to be above 0")
    rows = max(1, chunk_elements // max(logits.shape[-1], 1))
    return _ChunkedLogProbs.apply(logits, targets, temperature, group, reuse_logits, rows)  # type: ignore[return-value]


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits, targets, temperature, group, reuse_logits, rows):
        here, local = _local_targets(targets, logits.shape[-1], group)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        largest, total, mean, chosen = (torch.empty(len(logits), dtype=dtype, device=logits.device) for _ in range(4))
        for part in _chunks(len(logits), rows):
            scores = logits[part].to(dtype) / temperature
            largest[part] = scores.amax(-1)
            scores -= largest[part, None]
            chosen[part] = scores.gather(-1, local[part, None])[:, 0]
            weights = scores.exp()
            total[part] = weights.sum(-1)
            mean[part] = weights.mul_(scores).sum(-1)
        if group is not None:
            _combine(largest, total, mean, chosen, here, group)
        log_total = total.log()
        log_probs, entropy = chosen - log_total, log_total - mean / total
        ctx.save_for_backward(logits, here, local, largest + log_total, entropy)
        ctx.temperature, ctx.rows, ctx.reuse_logits = temperature, rows, reuse_logits
        ctx.set_materialize_grads(False)
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None):  # type: ignore[override]
        grad_log_probs, grad_entropy = grads
        logits, here, local, log_normaliser, entropy = ctx.saved_tensors
        # Written through a detached view: autograd must not take the overwritten logits for a forward operation.
        result = logits.detach() if ctx.reuse_logits else torch.empty_like(logits)
        zero = torch.zeros_like(entropy)
        to_log_probs = zero if grad_log_probs is None else grad_log_probs
        for part in _chunks(len(logits), ctx.rows):
            log_p = (logits[part].to(entropy.dtype) / ctx.temperature).sub_(log_normaliser[part, None])
            p = log_p.exp()
            if grad_entropy is None:
                p.mul_(-to_log_probs[part, None])
            else:  # d entropy / d score = -p (log p + entropy)
                log_p.add_(entropy[part, None]).mul_(grad_entropy[part, None]).add_(to_log_probs[part, None])
                p.mul_(log_p.neg_())
            p.scatter_add_(-1, local[part, None], torch.where(here, to_log_probs, zero)[part, None])
            result[part] = p.div_(ctx.temperature)
        return result, None, None, None, None, None


def _chunks(count: int, rows: int) -> list[slice]:
    return [slice(start, start + rows) for start in range(0, count, rows)]


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
