"""The gradient of a tensor that has one."""

import torch


def grad_of(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad
