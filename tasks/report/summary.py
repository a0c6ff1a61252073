"""`summary.json`: the verdict first, then everything that a reader, a dashboard or a comparison needs of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.environment import Environment
from infra.records.rollouts import RolloutsRef, read_table
from infra.records.training import StepResult, TrainedIteration
from infra.records.verdict import Verdict
from infra.run import Run
from infra.scenario.review import warnings_of
from infra.store import canonical_json, sha256
from infra.text import finite

SUMMARY_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class IterationFigures:
    """One iteration as the plots and tables show it; `reward` is the mean over rollouts."""

    iteration: int
    reward: float | None
    rollouts: int
    samples: int
    steps: tuple[StepResult, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)


def summarise(
    run: Run,
    verdict: Verdict,
    seconds: Mapping[str, float],
    environment: Environment,
    figures: list[IterationFigures],
    *,
    code_digest: str,
) -> dict[str, Any]:
    """The content of `summary.json`; NaN and infinity are text in it.

    Args:
        seconds: wall-clock seconds by stage.
        code_digest: sha256 over the product's Python files.
    """
    scenario = run.scenario.model_dump(mode="json")
    steps = [s for f in figures for s in f.steps]
    ranks = run.scenario.training.world_size
    return finite(
        {
            **verdict.to_dict(),
            "version": SUMMARY_VERSION,
            "run": run.run_id,
            "warnings": warnings_of(run.scenario),
            "not_run": [c.name for c in verdict.checks if c.status == "not run"],
            "seconds_by_stage": {name: round(value, 3) for name, value in seconds.items()},
            "weights_digest": steps[-1].weights_digest if steps else None,
            "iterations": [_iteration(f) for f in figures],
            "scenario": scenario,
            "scenario_digest": sha256(canonical_json(scenario)),
            "code_digest": code_digest,
            "environment_digest": environment.digest,
            "environment": environment.to_dict(),
            "versions": environment.versions(),
            "ranks": ranks,
            "emulated_gpus": environment.device == "cpu",
            "store": run.store_uri,
        }
    )


def _iteration(figures: IterationFigures) -> dict[str, Any]:
    return {
        "iteration": figures.iteration,
        "reward": figures.reward,
        "rollouts": figures.rollouts,
        "samples": figures.samples,
        "figures": figures.figures,
        "steps": [
            {
                "step": s.step,
                "loss": s.loss,
                "gradient_norm": s.gradient_norm,
                "clip_fraction": s.clip_fraction,
                "max_ratio_error": s.max_ratio_error,
                "approx_kl": s.approx_kl,
                "entropy": s.entropy,
                "tokens": s.tokens,
                "seconds": s.seconds,
                "weights_digest": s.weights_digest,
            }
            for s in figures.steps
        ],
    }


def figures_of(run: Run) -> list[IterationFigures]:
    """What the finished stages of each iteration left to show, from the store."""
    shown = []
    for i in range(run.scenario.rollout.iterations):
        rollout, training = run.finished("rollout", i), run.finished("training", i)
        if rollout is None:
            continue
        ref = RolloutsRef.from_dict(rollout)
        columns = read_table(run.store, ref.table).select(["rollout_id", "reward"]).to_pydict()
        rewards = [
            r for r in dict(zip(columns["rollout_id"], columns["reward"], strict=True)).values() if r is not None
        ]
        shown.append(
            IterationFigures(
                iteration=i,
                reward=sum(rewards) / len(rewards) if rewards else None,
                rollouts=ref.rollouts,
                samples=ref.samples,
                figures=ref.figures | _evaluation(run, i),
                steps=TrainedIteration.from_dict(training).steps if training else (),
            )
        )
    return shown


def _evaluation(run: Run, iteration: int) -> dict[str, float]:
    """Figures of the evaluation behind an iteration, empty where it had none."""
    record = run.finished("evaluation", iteration)
    figures = RolloutsRef.from_dict(record).figures if record else {}
    return {f"evaluation: {name}": value for name, value in figures.items()}
