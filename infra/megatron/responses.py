"""From the model's logits to log-probs and entropies of the response tokens, under every layout."""

from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

from infra.megatron.config import ModelShape
from infra.megatron.groups import context_group, tensor_group
from infra.megatron.packing import PackedBatch
from tasks.training.loss.log_probs import log_probs_and_entropy


def response_log_probs(
    logits: Tensor, batch: PackedBatch, shape: ModelShape, temperature: float
) -> tuple[Tensor, Tensor]:
    """([responses], [responses]) log-probs of logits / temperature and entropies, in nats; equal on all tensor and
    context ranks. The logits' gradient takes their place.

    Args:
        logits: [1, tokens of this context rank, vocabulary of this tensor rank], as the last stage gives them.
    """
    context, tensor = context_group(), tensor_group()
    scores = logits.squeeze(0)  # not logits[0], whose backward copies the gradient
    form = {
        "temperature": temperature,
        "columns": vocabulary_columns(scores.shape[1], shape, tensor.rank()),
        "group": tensor if tensor.size() > 1 else None,
    }
    if context.size() == 1:
        return log_probs_and_entropy(scores, batch.targets, rows=batch.response_at, **form)
    local = log_probs_and_entropy(scores, batch.labels[batch.here], **form)
    # Every context rank goes on with all tokens and takes the gradient of its own: the loss need not know of chunks.
    log_probs, entropy = (
        gather_from_sequence_parallel_region(x, False, context)[batch.gather][batch.response_at] for x in local
    )
    return log_probs, entropy


def vocabulary_columns(share: int, shape: ModelShape, tensor_rank: int) -> int:
    """How many columns of a tensor rank's share are tokens; the last ranks' shares are filled up."""
    return min(share, shape.vocabulary - tensor_rank * share)
