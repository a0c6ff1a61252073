"""A run of a scenario without Prefect: the flow's stages as plain functions, one after the other."""

from __future__ import annotations

from dataclasses import replace

from infra.environment import describe
from infra.megatron.trainer import MegatronTrainer
from infra.open_run import code_digest
from infra.records.rollouts import RolloutsRef
from infra.records.sources import ModelRef, PromptsRef
from infra.records.training import SyncResult, TrainedIteration
from infra.records.verdict import Verdict, conclude
from infra.reference_stack import reference_stack
from infra.run import Run
from infra.settings import settings
from infra.sglang.serving import ServingEngine
from infra.sources.host import this_host
from infra.sources.model import fetch_model
from infra.stopwatch import Stopwatch
from tasks.counter_assertion.reading import read_evidence
from tasks.counter_assertion.registry import run_checks
from tasks.download.stage import publish_prompts
from tasks.report.plot import png
from tasks.report.publish import publish
from tasks.report.summary import figures_of, summarise
from tasks.reward_normalization.stage import normalise
from tasks.rollout.stage import OpenClient, RolloutStage
from tasks.rollout.stop import load_tokenizer
from tasks.training.replay import replay_run
from tasks.training.sync import push_and_compare
from tasks.training.task import gradients_to_publish, publish_plan, record_left_out


def plain_run(run: Run) -> Verdict:
    """All stages of a run and its report; what `flows.fanout_regression` does, less tasks, retries and artifacts."""
    timer, packages = Stopwatch(), tuple(settings().hook_packages)
    with timer("download"):
        model = fetch_model(run.scenario.model.uri, this_host())
        prompts = publish_prompts(run, model, packages)
    with reference_stack(run, model, timer) as (engine, trainer):
        for iteration in run.unfinished_iterations():
            with timer("rollout"):
                generated = rollout_stage(run, model, prompts, engine.client, iteration, packages)
            with timer("reward_normalization"):
                rollouts = normalization_stage(run, generated, packages)
            with timer("training"):
                trained = training_stage(run, model, rollouts, trainer)
            with timer("weight_sync"):
                sync_stage(run, rollouts, trained, trainer, engine)
        with timer("replay"):
            engine.stop()
            trainer.stop()
            replay_run(run, model, trainer.cluster)
    with timer("counter_assertion"):
        evidence = replace(read_evidence(run, model, prompts, None), hook_packages=packages)
        verdict = conclude(run_checks(evidence), plumbing_only=run.scenario.plumbing_only)
    figures, environment = figures_of(run), describe(run.scenario.device)
    publish(run, summarise(run, verdict, timer.seconds, environment, figures, code_digest=code_digest()), png(figures))
    return verdict


def rollout_stage(
    run: Run, model: ModelRef, prompts: PromptsRef, client: OpenClient, iteration: int, packages: tuple[str, ...]
) -> RolloutsRef:
    """Generate and grade one iteration through a client of the engine."""
    tokenizer = load_tokenizer(model.path)
    stage = RolloutStage(
        run=run, model_path=model.path, tokenizer=tokenizer, iteration=iteration, hook_packages=packages
    )
    rollouts = stage.run_with(stage.slots(prompts), client)
    run.finish("rollout", iteration, rollouts.to_dict())
    return rollouts


def normalization_stage(run: Run, generated: RolloutsRef, packages: tuple[str, ...]) -> RolloutsRef:
    """Normalise one iteration's rewards."""
    rollouts = normalise(run, generated, packages)
    run.finish("reward_normalization", rollouts.iteration, rollouts.to_dict())
    return rollouts


def training_stage(run: Run, model: ModelRef, rollouts: RolloutsRef, trainer: MegatronTrainer) -> TrainedIteration:
    """Plan and train one iteration."""
    plan = publish_plan(run, model, rollouts)
    trained = trainer.train(rollouts, plan, publish_gradients=gradients_to_publish(run, rollouts, plan))
    trained = replace(trained, ledger=(*trained.ledger, *record_left_out(run, plan)))
    run.finish("training", rollouts.iteration, trained.to_dict())
    return trained


def sync_stage(
    run: Run, rollouts: RolloutsRef, trained: TrainedIteration, trainer: MegatronTrainer, engine: ServingEngine
) -> SyncResult:
    """Carry the weights of one iteration into the engine and compare."""
    synced = push_and_compare(run, rollouts, trained, trainer, engine)
    run.finish("sync", rollouts.iteration, synced.to_dict())
    return synced


def last_weights(run: Run) -> str:
    """Digest of the weights that a run ended with."""
    record = run.finished("training", run.scenario.rollout.iterations - 1)
    assert record is not None, f"run {run.run_id} has not trained its last iteration"
    return TrainedIteration.from_dict(record).steps[-1].weights_digest
