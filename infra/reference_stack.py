"""The reference stack under test: SGLang generates, Megatron-core trains; started and ended together."""

import contextlib
from collections.abc import Iterator

from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.records.sources import ModelRef
from infra.records.training import TrainedIteration
from infra.run import Run
from infra.sglang.engine import SGLangEngine
from infra.stopwatch import Stopwatch


@contextlib.contextmanager
def reference_stack(run: Run, model: ModelRef, timer: Stopwatch) -> Iterator[tuple[SGLangEngine, MegatronTrainer]]:
    """Engine and trainer, both ready and both holding the weights of the last finished iteration.

    Both start at the same time. An engine that is restarted later gets the current weights before it answers.
    """
    engine = SGLangEngine.for_run(run, model)
    with timer("start"), contextlib.ExitStack() as stack:
        stack.enter_context(engine)
        cluster = stack.enter_context(RayCluster.for_run(run))
        trainer = stack.enter_context(MegatronTrainer(run, model, cluster))
        trainer.wait_ready()
        engine.wait_ready()
        engine.after_restart = lambda: _push_last_trained(run, trainer, engine)
        if trained := _last_trained(run):
            trainer.load_state(trained.state)
            _push_last_trained(run, trainer, engine)
        held = stack.pop_all()
    with held:
        yield engine, trainer


def _last_trained(run: Run) -> TrainedIteration | None:
    last = run.last_finished("training")
    record = None if last is None else run.finished("training", last)
    return TrainedIteration.from_dict(record) if record else None


def _push_last_trained(run: Run, trainer: MegatronTrainer, engine: SGLangEngine) -> None:
    if trained := _last_trained(run):
        trainer.push_weights([engine.url], trained.weight_version)
