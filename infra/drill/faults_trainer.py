"""Replacements in the trainer's processes and in its loss. Each is `original -> faulty`."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

OPTIONS: dict[str, str] = {}  # what a fault that comes in several forms is told


def loss_mask_ignored(original: Any) -> Any:
    """Every response token is trained, tool output too."""

    def faulty(self: Any, samples: Any) -> Any:
        batch = original(self, samples)
        return replace(batch, mask=torch.ones_like(batch.mask))

    return faulty


def advantage_sign_flipped(original: Any) -> Any:
    """Good answers are made less likely."""

    def faulty(self: Any, samples: Any) -> Any:
        batch = original(self, samples)
        return replace(batch, advantages=-batch.advantages)

    return faulty


def temperature_missing(original: Any) -> Any:
    """Log-probs are those of temperature 1, whatever the rollouts were drawn with."""

    def faulty(logits: Any, batch: Any, shape: Any, temperature: float, *args: Any, **kwargs: Any) -> Any:
        return original(logits, batch, shape, 1.0, *args, **kwargs)

    return faulty


def micro_batches_counted(original: Any) -> Any:
    """The gradient is divided by the number of micro-batches, not by what they hold."""

    def faulty(batch: Any, device: Any) -> Any:
        return torch.ones((), dtype=torch.int, device=device)

    return faulty


def one_rank_not_reduced(original: Any) -> Any:
    """The gradient of the last data-parallel rank is lost before the reduction."""

    def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
        ranks = self.intra_distributed_optimizer_instance_group
        if ranks.rank() == ranks.size() - 1:
            for bucket in self.buckets:
                bucket.grad_data.zero_()
        return original(self, *args, **kwargs)

    return faulty


def moments_lost(original: Any) -> Any:
    """Adam begins anew in every step, as when what was handed over or resumed comes back without its moments."""

    def faulty(self: Any, rollouts: int) -> Any:
        self.distributed.optimizer.state.clear()
        return original(self, rollouts)

    return faulty


def last_rank_steps_nothing(original: Any) -> Any:
    """The shard that the last rank's optimizer owns stays as it is."""

    def faulty(self: Any, rollouts: int) -> Any:
        if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            for group in self.megatron.param_groups:
                group["lr"] = 0.0  # until the schedule's next step
        return original(self, rollouts)

    return faulty


def clip_range_ignored(original: Any) -> Any:
    """Ratios are never clipped."""

    def faulty(log_ratio: Any, advantages: Any, **kwargs: Any) -> Any:
        return original(log_ratio, advantages, **{**kwargs, "clip_low": 1.0, "clip_high": float("inf")})

    return faulty


def reference_follows_the_policy(original: Any) -> Any:
    """The KL term compares with the present weights, not with the run's first."""
    return lambda self: contextlib.nullcontext()


def stale_weights_sent(original: Any) -> Any:
    """A sync carries the new version and the downloaded weights."""

    def faulty(tensors: Any, *how: Any) -> Any:
        from infra.megatron.core import read_weights
        from infra.weights_digest import digest

        first = read_weights(Path(OPTIONS["model"]))
        sent = original({name: first[name] for name in tensors}, *how)
        return replace(sent, digest=digest(tensors))

    return faulty


def one_tensor_left_out(original: Any) -> Any:
    """A sync leaves out the tensor that `OPTIONS` names, and reports the digest of all of them."""

    def faulty(tensors: Any, *how: Any) -> Any:
        from infra.weights_digest import digest

        sent = original({name: t for name, t in tensors.items() if name != OPTIONS["tensor"]}, *how)
        return replace(sent, tensors=len(tensors), digest=digest(tensors))

    return faulty
