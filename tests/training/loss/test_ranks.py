"""The same numbers on two real gloo ranks as in one process."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tasks.training.loss.advantages import whiten
from tasks.training.loss.log_probs import log_probs_and_entropy
from tests.training.loss.test_log_probs import gradient, random_logits

RANKS = 2
VALUES = torch.tensor([1.0, 7, 2, 3, 6, 4], dtype=torch.float64)
MASK = torch.tensor([1, 0, 1, 1, 1, 1])


def on_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    group = dist.group.WORLD
    logits, targets = random_logits(7, 14)
    share = logits.chunk(RANKS, -1)[rank]
    options = {"temperature": 0.7, "group": group, "chunk_elements": 20}
    outputs = log_probs_and_entropy(share, targets, **options)
    grad = gradient(log_probs_and_entropy, share, targets, **options)
    tokens = slice(0, 2) if rank == 0 else slice(2, 6)
    white = whiten(VALUES[tokens], MASK[tokens], group=group)
    torch.save({"outputs": outputs, "gradient": grad, "white": white}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_vocabulary_parallel_log_probs_and_whitening_over_ranks(tmp_path: Path):
    mp.spawn(on_rank, args=(str(tmp_path),), nprocs=RANKS)  # type: ignore[reportPrivateImportUsage]
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    logits, targets = random_logits(7, 14)
    expected = log_probs_and_entropy(logits, targets, temperature=0.7)
    for result in ranks:
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(result["outputs"], expected, strict=True))
    grad = torch.cat([result["gradient"] for result in ranks], -1)
    assert torch.allclose(grad, gradient(log_probs_and_entropy, logits, targets, temperature=0.7), atol=1e-12)
    assert torch.allclose(torch.cat([result["white"] for result in ranks]), whiten(VALUES, MASK))
