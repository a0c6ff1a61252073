import pytest
import torch

from tasks.training.loss.policy import cispo_loss, ppo_loss, sequence_log_ratio
from tests.cases_of import case
from tests.gradients import grad_of


def doubles(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def random_tokens(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """New and old log-probs and advantages."""
    generator = torch.Generator().manual_seed(seed)
    new, old, advantages = torch.randn(3, count, generator=generator, dtype=torch.float64)
    return (-new.abs()).requires_grad_(), -old.abs(), advantages


def test_dual_clip():
    known = case("loss-4")
    ratio, advantages = (doubles(*known["input"][name]) for name in ("ratio", "advantage"))
    eps, c = known["input"]["eps"], known["input"]["c"]
    loss, clipped = ppo_loss(ratio.log(), advantages, clip_low=eps, clip_high=eps, dual_clip=c)
    assert loss.tolist() == pytest.approx(known["expect"]["loss"])
    assert clipped.tolist() == [True, True, False]


def test_clip_bounds_are_separate():
    loss, clipped = ppo_loss(doubles(1.5, 0.5).log(), doubles(1, -1), clip_low=0.1, clip_high=0.3)
    assert loss.tolist() == pytest.approx([-1.3, 0.9]) and clipped.tolist() == [True, True]


def test_at_ratio_one_loss_and_gradient_are_the_advantage():
    new = doubles(-1, -2, -3, grad=True)
    loss, clipped = ppo_loss(new - new.detach(), doubles(1, -2, 0.5), clip_low=0.2, clip_high=0.2)
    loss.sum().backward()
    assert loss.tolist() == [-1, 2, -0.5] and grad_of(new).tolist() == [-1, 2, -0.5] and not clipped.any()


def test_sequence_ratio_has_value_and_gradient_of_the_sequence_objective():
    new, old, _ = random_tokens(9)
    segments, mask = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2]), torch.tensor([1, 0, 1, 1, 1, 1, 1, 1, 0])
    advantage = doubles(1.3, -0.7, 0.4)
    log_ratio = sequence_log_ratio(new - old, segments, mask)
    loss, _ = ppo_loss(log_ratio, advantage[segments], clip_low=0.3, clip_high=0.4)
    (loss * mask).sum().backward()
    got, new.grad = grad_of(new).clone(), None
    total = doubles(0).sum()
    for k in range(3):  # arXiv:2507.18071 equation 5, times the number of trained tokens
        chosen = (segments == k) & (mask == 1)
        ratio = (new - old)[chosen].mean().exp()
        objective = torch.minimum(ratio * advantage[k], ratio.clamp(0.7, 1.4) * advantage[k])
        total = total - chosen.sum() * objective
    total.backward()
    assert (loss * mask).sum().item() == pytest.approx(total.item())
    assert got == pytest.approx(new.grad)


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    new, old, advantages = random_tokens(50)
    loss, clipped = cispo_loss(new, old, advantages, clip_low=0.2, clip_high=0.3)
    loss.sum().backward()
    weight = (new - old).exp().clamp(0.8, 1.3).detach()
    assert clipped.any() and new.grad == pytest.approx(-weight * advantages)
    assert loss.detach() == pytest.approx((-weight * advantages * new).detach())
