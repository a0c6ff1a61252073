"""Every loss mean, estimator and correction on real gloo ranks, in each layout, against the independent oracle."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load, load_file

from infra.hook_loading import load_hook
from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.records.rollouts import log_probs_table, read_table, rollouts_table, with_column, write_table
from infra.records.sources import ModelRef
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.scenario.model import Normalization
from tasks.counter_assertion.evidence import LogProbs, StoredSample
from tasks.counter_assertion.oracle.compare import compare
from tasks.counter_assertion.oracle.expected import step_batch
from tasks.counter_assertion.oracle.reference import Before, compute
from tasks.reward_normalization.normalize import normalised_advantages
from tasks.training.cost import ModelShape
from tasks.training.plan import make_plan
from tests.cases_of import case
from tests.infra.megatron.reference import first_step, largest_relative_error
from tests.infra.megatron.samples import FAN_OUTS, TEMPERATURE, make_run, write_model, write_plan, write_rollouts
from tests.infra.megatron.variant_rank import VariantRank

pytestmark = pytest.mark.trainer

KNOWN = case("loss-3")
TOLERANCE = float(KNOWN["expect"]["same unclipped gradient"].split()[1])
SIZES = {"dp": "data_parallel", "tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel"}
MODELS = {"dp1": ("llama", False), "cp2": ("qwen2", False)}
LAYOUTS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    **{
        name: (*MODELS.get(name, ("qwen2", True)), {"data_parallel": 1, SIZES[name[:2]]: int(name[2:])})
        for name in KNOWN["input"]["layouts"]
    },
    "tensor and sequence": ("llama", False, {"data_parallel": 1, "tensor_parallel": 2, "sequence_parallel": True}),
    "virtual pipeline": ("llama", True, {"data_parallel": 1, "pipeline_parallel": 2, "virtual_pipeline": 2}),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "sample mean, gspo, whitened": {"loss_mean": "sample", "estimator": "gspo", "whiten_advantages": True},
    "prompt mean, cispo, entropy": {"loss_mean": "prompt", "estimator": "cispo", "entropy_coefficient": 0.05},
    "token mean, reinforce++, KL in the reward, truncated": {
        "loss_mean": "token",
        "estimator": "reinforce++",
        "gamma": 0.9,
        "kl_reward_coefficient": 0.1,
        "importance_correction": "truncate",
    },
    "rollout mean, gae, whitened": {
        "estimator": "gae",
        "gamma": 0.95,
        "gae_lambda": 0.9,
        "kl_reward_coefficient": 0.1,
        "whiten_advantages": True,
    },
    "constant, baseline form, k1, masked": {
        "loss_mean": "constant",
        "constant_denominator": 9,
        "estimator": "reinforce++-baseline",
        "kl_coefficient": 0.2,
        "kl_estimator": "k1",
        "importance_correction": "mask",
    },
}
HOOKS: dict[str, dict[str, Any]] = {
    "reinforce++": {"reward_post_process": "hooks.normalize.identity"},
    "gae": {"reward_post_process": "hooks.normalize.identity"},
    "reinforce++-baseline": {"divide_by_std": False},
}
SHAPE = ModelShape(layers=4, hidden=32, heads=4, key_value_heads=2, head_dim=8, mlp=64, vocabulary=127)


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(layout: str, tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    family, tied, _ = LAYOUTS[layout]
    return write_model(tmp_path_factory.mktemp("model"), family, tied=tied)


@pytest.fixture(scope="module")
def trainer(
    layout: str, model: ModelRef, tmp_path_factory: pytest.TempPathFactory, ray_cluster: RayCluster
) -> Iterator[MegatronTrainer]:
    """One set of ranks for all tests of a layout."""
    run = run_of(layout, tmp_path_factory.mktemp("run"), {})
    with MegatronTrainer(run, model, ray_cluster, rank_type=VariantRank) as trainer:
        trainer.wait_ready()
        yield trainer


def start_over(trainer: MegatronTrainer, run: Run) -> None:
    trainer.run = run
    ray.get([actor.start_over.remote(run) for actor in trainer.ranks.actors])


@pytest.fixture(scope="module")
def engine(model: ModelRef, tmp_path_factory: pytest.TempPathFactory) -> LogProbs:
    """Log-probs of an engine that is off by up to 1 nat: the model's own, with noise."""
    run = make_run(tmp_path_factory.mktemp("engine"))
    samples = graded_samples(run)
    everything = step_batch(samples, [s.rollout_id for s in samples], run.scenario)
    own = compute(model.path, model.parameters, everything, TEMPERATURE, run.scenario.training).log_probs
    draw = random.Random(0)
    found = {}
    for s in samples:
        trained = iter(own[s.key].tolist())
        found[s.key] = [next(trained) + draw.uniform(-1, 1) if m else 0.0 for m in s.loss_mask]
    return found


def graded_samples(run: Run) -> list[StoredSample]:
    rows = read_table(run.store, write_rollouts(run).table).to_pylist()
    draw, graded = random.Random(1), []
    for row in rows:
        values = {"values": [draw.uniform(-1, 1) for _ in row["loss_mask"]]}
        reward = (3 * row["rollout_id"] % 5) / 4
        graded.append(StoredSample(**{**row, "reward": reward, "advantage": None, "metadata": json.dumps(values)}))
    return graded


def test_first_step_is_that_of_plain_transformers(
    layout: str, trainer: MegatronTrainer, tmp_path: Path, model: ModelRef
) -> None:
    run = run_of(layout, tmp_path, {})
    start_over(trainer, run)
    rollouts = write_rollouts(run)
    rows = read_table(run.store, rollouts.table).to_pylist()
    before = trainer.weights_digest()
    trained = trainer.train(rollouts, write_plan(run, rows), publish_gradients={0})
    again = trainer.log_probs(rollouts.table, [3, 0, 5], TEMPERATURE)
    step = trained.steps[0]
    wanted = first_step(model.path, rows, list(step.rollout_terms), TEMPERATURE)

    assert before == digest_of(model.path)
    assert step.rollout_terms == pytest.approx(wanted.terms, rel=1e-5)
    assert step.gradient is not None
    gradient = load(run.store.read(step.gradient))
    error, where = largest_relative_error(gradient, wanted.gradient)
    assert error < TOLERANCE, where
    norm = torch.stack([g.square().sum() for g in wanted.gradient.values()]).sum().sqrt().item()
    assert step.gradient_norm == pytest.approx(norm, rel=1e-5)
    assert step.max_ratio_error == step.approx_kl == step.clip_fraction == 0
    assert trained.steps[1].max_ratio_error > 0.01
    published = {
        (r["rollout_id"], r["sibling"]): r["log_probs"] for r in read_table(run.store, trained.log_probs).to_pylist()
    }
    assert len(published) == sum(FAN_OUTS)
    for ids, log_probs in wanted.log_probs.items():
        assert published[ids] == pytest.approx(log_probs.tolist(), abs=1e-5)
    assert [len(x) for x in again] == [rows[k]["response_length"] for k in (3, 0, 5)]


def digest_of(folder: Path) -> str:
    """Of the model as it lies on the disk."""
    from infra.megatron.weights import digest

    return digest(load_file(folder / "model.safetensors"))


def run_of(layout: str, folder: Path, change: dict[str, Any]) -> Run:
    run = make_run(folder, f"in-{layout.split(' ')[0]}", **LAYOUTS[layout][2], **change)
    norm = Normalization(**HOOKS.get(change.get("estimator", ""), {}))
    return replace(run, scenario=run.scenario.model_copy(update={"normalization": norm}))


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_step_is_the_oracles(
    layout: str, variant: str, trainer: MegatronTrainer, engine: LogProbs, tmp_path: Path, model: ModelRef
) -> None:
    run = run_of(layout, tmp_path, VARIANTS[variant])
    samples, scenario = graded_samples(run), run.scenario
    table = rollouts_table([vars(s) for s in samples])
    hook = load_hook(scenario.normalization.reward_post_process, "reward_post_process")
    advantages = normalised_advantages(table, hook.function, hook.path, ScenarioArgs(scenario, ""))
    log_probs = [{"rollout_id": r, "sibling": s, "log_probs": values} for (r, s), values in engine.items()]
    rollouts = replace(
        write_rollouts(run),
        table=write_table(run.store, run.key("normalised.parquet"), with_column(table, "advantage", advantages)),
        log_probs=write_table(run.store, run.key("engine.parquet"), log_probs_table(log_probs)),
    )
    plan = make_plan(read_table(run.store, rollouts.table), scenario, SHAPE, 0)
    start_over(trainer, run)
    key = run.store.publish_json(run.key("plan.json"), plan.to_dict())
    trained = trainer.train(rollouts, key, publish_gradients=set(range(len(plan.steps))))
    old = {
        (r["rollout_id"], r["sibling"]): np.array(r["log_probs"])
        for r in read_table(run.store, trained.log_probs).to_pylist()
    }
    assert len(trained.steps) == len(plan.steps) > 1
    for planned, step in zip(plan.steps, trained.steps, strict=True):
        batch = step_batch(
            samples,
            planned.rollout_ids,
            scenario,
            of_iteration=[k for s in plan.steps for k in s.rollout_ids],
            engine=engine if scenario.training.uses_engine_log_probs else None,
        )
        before = step.weights_before and Before(weights=load(run.store.read(step.weights_before)), old=old)
        assert (before is None) == (step.step == 0)
        wanted = compute(model.path, model.parameters, batch, TEMPERATURE, scenario.training, before)

        assert step.gradient is not None and not wanted.tokens_at_a_clip
        error = compare(load(run.store.read(step.gradient)), wanted.gradient)
        assert error.largest < TOLERANCE and not error.lacking, (step.step, error)
        assert step.rollout_terms == pytest.approx(wanted.terms, rel=1e-5, abs=1e-6 * max(wanted.sizes.values()))
        assert step.gradient_norm == pytest.approx(wanted.norm, rel=1e-5)
    assert max(step.max_ratio_error for step in trained.steps) > scenario.training.clip_high
