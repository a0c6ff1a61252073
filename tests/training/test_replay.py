"""A trained iteration computed again on real Megatron-core ranks: equal to the bit, and equal in every other shape."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.records.replay import Invariance, Replay
from infra.records.rollouts import log_probs_table, read_table, write_table
from infra.records.sources import ModelRef
from infra.records.training import TrainedIteration
from infra.run import Run
from infra.store import canonical_json
from tasks.counter_assertion.checks import determinism, invariance
from tasks.counter_assertion.reading import read_evidence
from tasks.training.cost import ModelShape
from tasks.training.plan import make_plan
from tasks.training.replay import replay_run
from tests.infra.megatron.samples import make_run, write_model, write_rollouts

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    return write_model(tmp_path_factory.mktemp("model"), tied=True)


def with_checks(run: Run, **checks: object) -> Run:
    settings = run.scenario.checks.model_copy(update=checks)
    return replace(run, scenario=run.scenario.model_copy(update={"checks": settings}))


def train(run: Run, model: ModelRef, trainer: MegatronTrainer, iteration: int = 0) -> TrainedIteration:
    """Train the hand-made rollouts on the product's own plan and leave the records of the stages."""
    rollouts = write_rollouts(run, iteration)
    table = read_table(run.store, rollouts.table)
    rows = table.select(["rollout_id", "sibling", "response_length"]).to_pylist()
    log_probs = [{**row, "log_probs": [0.0] * row.pop("response_length")} for row in rows]
    key = run.key("iterations", iteration, "engine.parquet")
    rollouts = replace(rollouts, log_probs=write_table(run.store, key, log_probs_table(log_probs)))
    shape = ModelShape.from_config(json.loads((model.path / "config.json").read_text()))
    plan = make_plan(table, run.scenario, shape, iteration).to_dict()
    ref = run.store.publish(run.key("iterations", iteration, "plan.json"), canonical_json(plan))
    trained = trainer.train(rollouts, ref, publish_gradients={0} if iteration == 0 else set())
    run.finish("reward_normalization", iteration, rollouts.to_dict())
    run.finish("training", iteration, trained.to_dict())
    return trained


def record(run: Run, stage: str, iteration: int = 0) -> dict:
    found = run.finished(stage, iteration)
    assert found, stage
    return found


def test_a_replay_is_equal_to_the_bit_and_every_shape_gives_the_same_gradient(
    tmp_path: Path, model: ModelRef, ray_cluster: RayCluster
) -> None:
    run = make_run(tmp_path, "again", max_tokens_per_gpu=24)
    with MegatronTrainer(run, model, ray_cluster) as trainer:
        trained = train(run, model, trainer)
    replay_run(run, model, ray_cluster)

    assert Replay.from_dict(record(run, "replay")).step_digests == tuple(s.weights_digest for s in trained.steps)
    shapes = Invariance.from_dict(record(run, "invariance"))
    assert [v.name for v in shapes.variants] == ["permuted", "micro-batches", "copies", "data-parallel"]
    assert shapes.not_compared == ()
    evidence = read_evidence(run, model, None, None)
    assert determinism.check(evidence).status == "pass"
    result = invariance.check(evidence)
    assert result.status == "pass", result.reason
    errors = result.figures["largest error by shape"]
    assert max(errors.values()) < 5e-6 and all(v.gradient.sha256 != v.against.sha256 for v in shapes.variants), errors


def test_the_last_iteration_starts_from_the_state_of_the_one_before(
    tmp_path: Path, model: ModelRef, ray_cluster: RayCluster
) -> None:
    run = make_run(tmp_path, "last", data_parallel=1)
    rollout = run.scenario.rollout.model_copy(update={"iterations": 2})
    run = replace(run, scenario=run.scenario.model_copy(update={"rollout": rollout}))
    run = with_checks(run, replay_iteration="last")
    with MegatronTrainer(run, model, ray_cluster) as trainer:
        train(run, model, trainer)
        last = train(run, model, trainer, iteration=1)
    replay_run(run, model, ray_cluster)
    replayed = Replay.from_dict(record(run, "replay", 1))
    assert replayed.step_digests[-1] == last.weights_digest
    assert "data_parallel 2 instead of 1" in record(run, "invariance")["variants"][-1]["change"]


def test_a_scenario_can_do_without(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = with_checks(make_run(tmp_path, "without"), determinism=False, invariance=False)
    replay_run(run, model, ray_cluster)
    results = [c.check(read_evidence(run, model, None, None)) for c in (determinism, invariance)]
    assert [(r.status, "the scenario says" in r.reason) for r in results] == [("not run", True)] * 2
