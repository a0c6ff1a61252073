import pytest
import torch

from tasks.training.loss.log_probs import log_probs_and_entropy
from tests.gradients import grad_of


def plain(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = (logits.to(torch.float64) / temperature).log_softmax(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def random_logits(tokens: int, vocabulary: int, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(tokens, vocabulary, dtype=torch.float64, generator=generator)
    return logits.to(dtype), torch.randint(vocabulary, (tokens,), generator=generator)


def gradient(function, logits, *args, **options) -> torch.Tensor:
    logits = logits.clone().requires_grad_()
    log_probs, entropy = function(logits * 1, *args, **options)
    tokens = torch.arange(len(logits)).to(log_probs)
    ((1 + tokens) * log_probs + torch.cos(tokens) * entropy).sum().backward()
    return grad_of(logits)


@pytest.mark.parametrize("chunk_elements", [1, 40, 10**6])
def test_values_and_gradients_do_not_depend_on_the_chunks(chunk_elements):
    logits, targets = random_logits(7, 13)
    expected = plain(logits, targets, 0.7)
    got = log_probs_and_entropy(logits, targets, temperature=0.7, chunk_elements=chunk_elements)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(got, expected, strict=True))
    options = {"temperature": 0.7, "chunk_elements": chunk_elements}
    wanted = gradient(plain, logits, targets, 0.7)
    for keep in (False, True):
        found = gradient(log_probs_and_entropy, logits, targets, keep_logits=keep, **options)
        assert torch.allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("keep", [False, True])
def test_rows_that_are_not_asked_for_and_columns_that_are_no_tokens_get_no_gradient(keep: bool):
    logits, targets = random_logits(7, 13)
    rows, tokens = torch.tensor([5, 0, 3]), 11
    logits[[1, 2, 4, 6]], logits[:, tokens:] = float("nan"), float("inf")
    targets = targets[rows] % tokens
    real = logits[rows][:, :tokens]
    options = {"temperature": 0.7, "rows": rows, "columns": tokens, "keep_logits": keep, "chunk_elements": 20}
    got = log_probs_and_entropy(logits, targets, **options)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(got, plain(real, targets, 0.7), strict=True))
    leaf = logits.clone().requires_grad_()
    log_probs, entropy = log_probs_and_entropy(leaf * 1, targets, **options)
    (log_probs + entropy).sum().backward()
    wanted = torch.zeros_like(logits)
    real.requires_grad_()
    torch.cat(plain(real, targets, 0.7)).sum().backward()
    wanted[rows[:, None], torch.arange(tokens)] = grad_of(real)
    assert torch.allclose(grad_of(leaf), wanted, atol=1e-12)


def test_logits_are_overwritten_only_where_nothing_else_reads_them():
    logits, targets = random_logits(3, 5)
    leaf = logits.clone().requires_grad_()
    log_probs_and_entropy(leaf, targets, temperature=1)[0].sum().backward()
    assert torch.equal(leaf, logits)
    shared = leaf.exp()  # exp's own backward reads its result
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_probs_and_entropy(shared, targets, temperature=1)[0].sum().backward()
    log_probs_and_entropy(leaf.exp(), targets, temperature=1, keep_logits=True)[0].sum().backward()


def test_gradient_against_finite_differences():
    logits, targets = random_logits(3, 5)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_probs_and_entropy(x, targets, temperature=1.3), (logits,))
    assert torch.autograd.gradcheck(lambda x: log_probs_and_entropy(x, targets, temperature=1.3)[0], (logits,))
    assert torch.autograd.gradcheck(lambda x: log_probs_and_entropy(x, targets, temperature=1.3)[1], (logits,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_statistics_are_float32_and_the_gradient_has_the_dtype_of_the_logits(dtype):
    logits, targets = random_logits(20, 300, dtype)
    log_probs, entropy = log_probs_and_entropy(logits, targets, temperature=0.9)
    assert log_probs.dtype == entropy.dtype == torch.float32
    expected, expected_entropy = plain(logits, targets, 0.9)
    assert torch.allclose(log_probs.double(), expected, atol=1e-5)
    assert torch.allclose(entropy.double(), expected_entropy, atol=1e-5)
    assert gradient(log_probs_and_entropy, logits, targets, temperature=0.9).dtype == dtype


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    log_probs, entropy = log_probs_and_entropy(logits, torch.tensor([0]), temperature=0.5)
    assert log_probs.tolist() == [0] and entropy.tolist() == [0]


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match="temperature 0"):
        log_probs_and_entropy(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), temperature=0)
