"""From the model's logits to log-probs and entropies of the response tokens, under every layout."""

from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor
from torch.nn import functional

from infra.megatron.config import ModelShape
from infra.megatron.groups import context_group, tensor_group
from infra.megatron.packing import PackedBatch
from tasks.training.loss.log_probs import log_probs_and_entropy

NO_TOKEN = -1e30  # finite: infinity times a probability of 0 is not a number


def response_log_probs(
    logits: Tensor, batch: PackedBatch, shape: ModelShape, temperature: float
) -> tuple[Tensor, Tensor]:
    """([responses], [responses]) log-probs of logits / temperature and entropies, in nats; equal on all tensor and
    context ranks.

    Args:
        logits: [1, tokens of this context rank, vocabulary of this tensor rank], as the last stage gives them.
    """
    context, tensor = context_group(), tensor_group()
    group = tensor if tensor.size() > 1 else None
    scores = without_padding(logits[0], shape, tensor.rank())
    if context.size() == 1:
        # The rows are a copy, so their gradient may take its place.
        return log_probs_and_entropy(
            scores[batch.response_at], batch.targets, temperature=temperature, group=group, reuse_logits=True
        )
    local = log_probs_and_entropy(scores, batch.labels[batch.here], temperature=temperature, group=group)
    # Every context rank goes on with all tokens and takes the gradient of its own: the loss need not know of chunks.
    log_probs, entropy = (
        gather_from_sequence_parallel_region(x, False, context)[batch.gather][batch.response_at] for x in local
    )
    return log_probs, entropy


def without_padding(scores: Tensor, shape: ModelShape, tensor_rank: int) -> Tensor:
    """[tokens, columns] with the columns that only fill up the vocabulary made impossible."""
    columns = scores.shape[1]
    tokens = min(columns, shape.vocabulary - tensor_rank * columns)
    if tokens == columns:
        return scores
    return functional.pad(scores[:, :tokens], (0, columns - tokens), value=NO_TOKEN)
