"""The reference stack under test: SGLang generates, Megatron-core trains; started and ended together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from infra.errors import ConfigurationError
from infra.megatron.device import resolve
from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.records.sources import ModelRef
from infra.records.training import TrainedIteration
from infra.run import Run
from infra.sglang.cluster_engine import ClusterEngine
from infra.sglang.devices import device_groups
from infra.sglang.engine import SGLangEngine
from infra.sglang.fleet import Fleet
from infra.sglang.serving import ServingEngine
from infra.stopwatch import Stopwatch
from infra.turns import Turns


@contextlib.contextmanager
def reference_stack(run: Run, model: ModelRef, timer: Stopwatch) -> Iterator[tuple[ServingEngine, MegatronTrainer]]:
    """Engine and trainer, both ready and both holding the weights of the last finished iteration.

    Both start at the same time. An engine that is restarted later gets the current weights before it answers.
    """
    with timer("start"), contextlib.ExitStack() as stack:
        cluster = stack.enter_context(RayCluster.for_run(run))
        engine = stack.enter_context(_engine(run, model, cluster))
        trainer = stack.enter_context(MegatronTrainer(run, model, cluster))
        trainer.wait_ready()
        _refuse_out_of_reach(cluster, trainer)
        engine.wait_ready()
        engine.after_restart = lambda: _push_last_trained(run, trainer, engine)
        if _shares_gpus(run, cluster):
            trainer.turns = Turns(engine, trainer.memory_of_ranks)
            engine.before_restart = trainer.turns.before_restart
            trainer.turns.begin()
        if trained := _last_trained(run):
            trainer.load_state(trained.state)
            _push_last_trained(run, trainer, engine)
        held = stack.pop_all()
    with held:
        yield engine, trainer


def _engine(run: Run, model: ModelRef, cluster: RayCluster) -> ServingEngine:
    """On the nodes that `FANLINE_ENGINE_LABELS` names, else on this host; on the trainer's GPUs where it has some.

    Raises:
        ConfigurationError: settings of the engine that do not go with where it runs.
    """
    _refuse_out_of_place(run, cluster)
    if cluster.engine_labels:
        engines: list[ServingEngine] = [
            ClusterEngine(run, model, cluster) for _ in range(run.scenario.engine.servers or 1)
        ]
    else:
        groups = device_groups(run)
        names = ["engine"] if len(groups) == 1 else [f"engine-{k}" for k in range(len(groups))]
        engines = [
            SGLangEngine.for_run(run, model, devices=devices, name=name)
            for devices, name in zip(groups, names, strict=True)
        ]
    return engines[0] if len(engines) == 1 else Fleet(engines)


def _refuse_out_of_place(run: Run, cluster: RayCluster) -> None:
    engine, elsewhere = run.scenario.engine, bool(cluster.engine_labels)
    wrong = []
    if engine.weight_sync == "disk" and elsewhere:
        wrong.append("engine.weight_sync disk needs engines on the trainer's own host.")
    if engine.weight_sync == "distributed" and not elsewhere and resolve(run.scenario) == "cuda":
        wrong.append("engine.weight_sync distributed needs engines on other GPUs than the trainer's.")
    if engine.tensor_parallel > 1 and elsewhere:
        wrong.append("engine.tensor_parallel: on the nodes of a Ray cluster a server has one GPU; give engine.servers.")
    if wrong:
        raise ConfigurationError(
            "\n".join(wrong),
            next_step="Change the setting, or with FANLINE_ENGINE_LABELS where the engine runs.",
            ids=[run.run_id],
        )


def _shares_gpus(run: Run, cluster: RayCluster) -> bool:
    own = cluster.local and not cluster.engine_labels
    return own and run.scenario.engine.offload and resolve(run.scenario) == "cuda"


def _refuse_out_of_reach(cluster: RayCluster, trainer: MegatronTrainer) -> None:
    if not cluster.engine_labels and (away := trainer.other_hosts()):
        raise ConfigurationError(
            f"The trainer of run {trainer.run.run_id} is on node {', '.join(away)} and the engine on this host, which "
            "it can not hand weights to.",
            next_step="Say with FANLINE_ENGINE_LABELS on which nodes of the Ray cluster the engine runs.",
            ids=[trainer.run.run_id, *away],
        )


def _last_trained(run: Run) -> TrainedIteration | None:
    last = run.last_finished("training")
    record = None if last is None else run.finished("training", last)
    return TrainedIteration.from_dict(record) if record else None


def _push_last_trained(run: Run, trainer: MegatronTrainer, engine: ServingEngine) -> None:
    if trained := _last_trained(run):
        trainer.push_weights(engine.receivers, trained.weight_version)
