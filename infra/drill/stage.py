"""One run of a scene through the product's own stages, without Prefect, up to the results of its checks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import FanlineError
from infra.hook_check.engine import Generated, SmallEngine, SmallModel
from infra.records.rollouts import RolloutsRef
from infra.records.sources import ModelRef, PromptsRef
from infra.records.training import TrainedIteration
from infra.records.verdict import Verdict, conclude
from infra.run import Run
from infra.scenario.model import Scenario
from tasks.counter_assertion.reading import read_evidence
from tasks.counter_assertion.registry import run_checks
from tasks.download.stage import publish_prompts
from tasks.reward_normalization.stage import normalise
from tasks.rollout import stage as rollout_stage
from tasks.rollout.stage import RolloutStage
from tasks.rollout.stop import load_tokenizer
from tasks.training.task import train_iteration

if TYPE_CHECKING:
    from infra.drill.ranks import DrillTrainer
    from infra.sglang.engine import SGLangEngine

HOOK_PACKAGES = ("hooks", "infra.drill")
Request = tuple[Any, ...]


@dataclass(kw_only=True)
class Stack:
    """What all runs of a drill share: the model, the ranks, and an engine."""

    model: ModelRef
    small: SmallModel
    trainer: DrillTrainer
    engine: SGLangEngine | None = None
    answers: dict[Request, Generated] = field(default_factory=dict)


@dataclass(kw_only=True)
class RememberingEngine(SmallEngine):
    """A small engine that has answered equal requests before: most faults come after generation."""

    answers: dict[Request, Generated]

    async def generate(self, input_ids: list[int], **how: Any) -> Generated:
        key = (self.version, tuple(input_ids), *(str(how[name]) for name in sorted(how)))
        if key not in self.answers:
            self.answers[key] = await super().generate(input_ids, **how)
        return self.answers[key]


@contextlib.contextmanager
def ready_stack(folder: Path, scenario: Scenario) -> Iterator[Stack]:
    """The model and real trainer ranks, started once for all runs with this scenario's layout and optimizer.

    Args:
        folder: for the store, the spool and logs.
        scenario: one with a KL term, where any of the runs has one: the ranks keep the first weights then.
    """
    from infra.drill.ranks import DrillTrainer
    from infra.pool.hold import command_lease
    from infra.ray_cluster import RayCluster
    from infra.sources.host import this_host
    from infra.sources.model import fetch_model

    model = fetch_model(scenario.model.uri, this_host())
    ranks = scenario.training.world_size
    run = Run(run_id="drill", scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")
    with (
        command_lease("drill", scenario),
        RayCluster("drill", ranks, ranks, folder / "ray.log") as cluster,
        DrillTrainer(run, model, cluster) as trainer,
    ):
        small = SmallModel(model.path)
        trainer.wait_ready()
        yield Stack(model=model, small=small, trainer=trainer)


def run_scene(stack: Stack, run: Run) -> Verdict:
    """All iterations and all checks; an error of the pipeline becomes part of the verdict, as in a run."""
    rollout_stage.forget_hooks()
    prompts, fault = publish_prompts(run, stack.model), None
    try:
        version = None
        for iteration in range(run.scenario.rollout.iterations):
            version = _iteration(stack, run, prompts, iteration, version)
    except FanlineError as error:
        fault = error
    evidence = read_evidence(run, stack.model, prompts, fault)
    return conclude(run_checks(replace(evidence, hook_packages=HOOK_PACKAGES)), plumbing_only=False)


def _iteration(stack: Stack, run: Run, prompts: PromptsRef, iteration: int, version: str | None) -> str:
    """Generate, grade, normalise, train; returns the version of the weights that the next iteration generates with."""
    stage = RolloutStage(
        run=run,
        model_path=stack.model.path,
        tokenizer=load_tokenizer(stack.model.path),
        iteration=iteration,
        hook_packages=HOOK_PACKAGES,
    )
    with _engine(stack, version) as client:
        generated = stage.run_with(stage.slots(prompts), client)
    run.finish("rollout", iteration, generated.to_dict())
    rollouts = normalise(run, generated, HOOK_PACKAGES)
    run.finish("reward_normalization", iteration, rollouts.to_dict())
    trained = train_iteration.fn(run, stack.model, rollouts, stack.trainer)
    return _carry_weights(stack, run, rollouts, trained)


@contextlib.contextmanager
def _engine(stack: Stack, version: str | None) -> Iterator[Any]:
    if stack.engine:
        yield stack.engine.client
        return
    small = RememberingEngine(model=stack.small, answers=stack.answers)
    if version is None:
        stack.small.become(stack.model.path)
    else:
        small.version = version
    yield lambda: contextlib.nullcontext(small)


def _carry_weights(stack: Stack, run: Run, rollouts: RolloutsRef, trained: TrainedIteration) -> str:
    from tasks.training.sync import push_and_compare

    if stack.engine:
        result = push_and_compare(run, rollouts, trained, stack.trainer, stack.engine)
        run.finish("sync", rollouts.iteration, result.to_dict())
    elif rollouts.iteration + 1 < run.scenario.rollout.iterations:
        key = run.key("iterations", rollouts.iteration, "weights-{digest}.safetensors")
        stack.small.load(run.store.read(stack.trainer.whole_weights(key)))
    return trained.weight_version


def red_checks(verdict: Verdict) -> list[str]:
    return [c.name for c in verdict.checks if c.status in ("fail", "infra")]


def statuses(verdict: Verdict) -> Mapping[str, str]:
    return {c.name: c.status for c in verdict.checks}


def reasons(verdict: Verdict, names: Sequence[str]) -> dict[str, str]:
    return {c.name: c.reason for c in verdict.checks if c.name in names}
