"""Real trainer ranks that serve one scene after another, with a fault or without: starting them is what takes time."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping

from infra.drill import faults_trainer
from infra.drill.fault import in_a_rank, installed
from infra.megatron.rank import TrainerRank
from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.records.sources import ModelRef
from infra.run import Run
from infra.store import ObjectRef


class DrillRank(TrainerRank):
    """A trainer rank that can begin another run, at the downloaded weights, and have product functions replaced."""

    def begin(self, run: Run, replaces: Mapping[str, str], options: Mapping[str, str]) -> None:
        """Forget the run before. Layout, model and the optimizer's settings stay those of the start."""
        self.end()
        self.run = run
        self._become_as_downloaded()
        faults_trainer.OPTIONS.clear()
        faults_trainer.OPTIONS.update(options, model=str(self.model_ref.path))
        self._faults = contextlib.ExitStack()
        self._calls = self._faults.enter_context(installed(in_a_rank(replaces)))

    def end(self) -> Counter[str]:
        """Take the replacements out; gives how often each was called."""
        if not hasattr(self, "_faults"):
            return Counter()
        self._faults.close()
        return self._calls

    def whole_weights(self, key: str) -> ObjectRef | None:
        """Publish the present weights under their Hugging Face names; rank 0 gives the reference."""
        from infra.megatron.tensors import publish_tensors

        weights = self.core.whole_weights()
        if self.rank:
            return None
        return publish_tensors(self.run, key, {name: t.detach().float().cpu() for name, t in weights.items()})

    def _become_as_downloaded(self) -> None:
        """First weights, no moments, no rollouts seen."""
        import torch

        from infra.megatron.convert import load_huggingface
        from infra.megatron.core import read_weights

        core = self.core
        with torch.no_grad():
            load_huggingface(core.model, read_weights(self.model_ref.path), core.shape)
            for shard in core.optimizer.owned(core.model):
                first = shard.parameter.view(-1)[shard.start : shard.end]
                shard.main.data.copy_(first.view_as(shard.main))
            core.optimizer.distributed.optimizer.state.clear()
            core.optimizer.publish_parameters()
        core.optimizer.schedule.num_steps = 0


class DrillTrainer(MegatronTrainer):
    """The driver's side of such ranks."""

    def __init__(self, run: Run, model: ModelRef, cluster: RayCluster):
        super().__init__(run, model, cluster, rank_type=DrillRank)

    def begin(self, run: Run, replaces: Mapping[str, str], options: Mapping[str, str]) -> None:
        """Serve this run from now on."""
        self._together("begin", lambda _: (run, dict(replaces), dict(options)), "the beginning of a drill")
        self.run = run

    def end(self) -> Counter[str]:
        """Take all replacements out; gives how often each was called, over all ranks."""
        calls: Counter[str] = Counter()
        for of_rank in self._together("end", lambda _: (), "the end of a drill"):
            calls.update(of_rank)
        return calls

    def whole_weights(self, key: str) -> ObjectRef:
        """The present weights, published as safetensors of float32 under their Hugging Face names."""
        return self._together("whole_weights", lambda _: (key,), "publishing the weights")[0]
