"""A rank's trainer state in the store: safetensors of what its optimizer owns; nothing is pickled.

A shard holds, for every parameter of which the rank owns a part, the float32 master part, Adam's two moments and its
step count. The manifest, which the driver publishes, names the shards and what they belong to.
"""

from __future__ import annotations

import torch
from safetensors.torch import load

from infra.errors import StoreUnavailable
from infra.megatron.core import TrainerCore
from infra.megatron.reports import StateShard
from infra.megatron.tensors import publish_tensors
from infra.run import Run
from infra.store import ObjectRef

MASTER = "master"


def publish_shard(run: Run, iteration: int, core: TrainerCore) -> StateShard:
    """Publish this rank's shard; equal states give equal bytes."""
    tensors: dict[str, torch.Tensor] = {}
    parts = {}
    for shard in core.optimizer.owned(core.model):
        held = {MASTER: shard.main, **core.optimizer.moments(shard)}
        tensors |= {f"{shard.name}/{kind}": t.detach().cpu() for kind, t in held.items()}
        parts[shard.name] = {"shape": list(shard.parameter.shape), "start": shard.start, "end": shard.end}
    name = f"rank-{core.place.rank:04d}-{{digest}}.safetensors"
    ref = publish_tensors(run, run.key("iterations", iteration, "state", name), tensors)
    return StateShard(rank=core.place.rank, ref=ref, parts=parts)


@torch.no_grad()
def load_shard(run: Run, ref: ObjectRef, rollouts_seen: int, core: TrainerCore) -> None:
    """Become the rank that published the shard, to the bit; a collective, since parameters are gathered afterwards.

    Raises:
        StoreUnavailable: the shard does not hold what this rank's optimizer owns.
    """
    held = load(run.store.read(ref))
    owned = list(core.optimizer.owned(core.model))
    if {name.rpartition("/")[0] for name in held} != {shard.name for shard in owned}:
        raise StoreUnavailable(
            f"{ref.key} is not the state of rank {core.place.rank} in this layout.",
            next_step="Resume with the parallel sizes and the model of the run that wrote it.",
            ids=[ref.key, core.place.rank],
        )
    for shard in owned:
        mine = {k.rpartition("/")[2]: v for k, v in held.items() if k.rpartition("/")[0] == shard.name}
        shard.main.data.copy_(mine.pop(MASTER))
        moments = {k: v if k == "step" else v.to(shard.main.device) for k, v in mine.items()}
        core.optimizer.set_moments(shard, moments)
    core.optimizer.publish_parameters()
    core.optimizer.schedule.num_steps = 0
    core.optimizer.schedule.step(increment=rollouts_seen)
