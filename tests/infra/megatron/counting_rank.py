"""A trainer rank that counts how often Megatron's own functions run; the functions themselves stay what they are."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from infra.megatron.rank import TrainerRank
from infra.megatron.reports import RankPlace


class CountingRank(TrainerRank):
    def start(self, meeting_at: tuple[str, int]) -> RankPlace:
        place = super().start(meeting_at)
        from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
        from megatron.core.optimizer import ChainedOptimizer
        from megatron.core.pipeline_parallel import schedules

        self.calls: Counter[str] = Counter()
        config = self.core.model.config
        assert config.finalize_model_grads_func is finalize_model_grads
        config.finalize_model_grads_func = self._counted(finalize_model_grads)
        schedules.forward_backward_no_pipelining = self._counted(schedules.forward_backward_no_pipelining)
        DistributedDataParallel.finish_grad_sync = self._counted(DistributedDataParallel.finish_grad_sync)
        ChainedOptimizer.step = self._counted(ChainedOptimizer.step)
        return place

    def counts(self) -> dict[str, int]:
        return dict(self.calls)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[function.__name__ + ("/forward only" if kwargs.get("forward_only") else "")] += 1
            return function(*args, **kwargs)

        return counted
