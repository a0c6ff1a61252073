"""Which GPUs of this host each server of a run gets."""

from __future__ import annotations

from infra.errors import ConfigurationError
from infra.megatron.device import resolve
from infra.run import Run
from infra.settings import visible_devices


def device_groups(run: Run) -> list[tuple[str, ...]]:
    """The GPUs of each server, as `CUDA_VISIBLE_DEVICES` names them; none of any on a CPU.

    Raises:
        ConfigurationError: the scenario asks for more servers than the run's GPUs can hold.
    """
    engine, kind = run.scenario.engine, resolve(run.scenario)
    if kind == "cpu":
        if engine.tensor_parallel > 1:
            raise ConfigurationError("engine.tensor_parallel: on a CPU a server has one rank; give engine.servers.")
        return [()] * (engine.servers or 1)
    import torch

    seen = visible_devices() or tuple(map(str, range(torch.cuda.device_count())))
    own, size = seen[: run.scenario.training.world_size], engine.tensor_parallel
    servers = engine.servers or len(own) // size
    if not servers or servers * size > len(own):
        raise ConfigurationError(
            f"{servers or 1} servers with {size} GPUs each do not fit on the {len(own)} GPUs of the run, one for each "
            "trainer rank.",
            next_step="Lower engine.servers or engine.tensor_parallel, or give the trainer more ranks.",
            ids=[run.run_id],
        )
    return [own[k * size : (k + 1) * size] for k in range(servers)]
