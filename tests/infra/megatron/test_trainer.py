"""Real Megatron-core ranks in Ray actors: what a trainer keeps, counts and says. Its numbers are in test_algorithms."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from infra.chaos.processes import wait_until
from infra.errors import ConfigurationError, TrainerUnavailable
from infra.ledger import read_segment
from infra.megatron.numeric import NumericFailure, ReplicasDiffer
from infra.megatron.rank import TrainerRank
from infra.megatron.trainer import MegatronTrainer
from infra.ray_cluster import RayCluster
from infra.records.rollouts import RolloutsRef, read_table, with_column, write_table
from infra.records.sources import ModelRef
from infra.records.training import TrainedIteration
from infra.run import Run
from tests.infra.megatron.counting_rank import CountingRank
from tests.infra.megatron.no_pickle_rank import NoPickleRank
from tests.infra.megatron.samples import (
    FAN_OUTS,
    ROLLOUTS_PER_STEP,
    make_run,
    write_model,
    write_plan,
    write_rollouts,
)

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    return write_model(tmp_path_factory.mktemp("model"), tied=True)


def rows_of(run: Run, rollouts: RolloutsRef) -> list[dict]:
    return read_table(run.store, rollouts.table).to_pylist()


def train(trainer: MegatronTrainer, run: Run, iteration: int = 0, gradients: tuple[int, ...] = ()) -> TrainedIteration:
    rollouts = write_rollouts(run, iteration)
    plan = write_plan(run, rows_of(run, rollouts), iteration)
    return trainer.train(rollouts, plan, publish_gradients=set(gradients))


def test_a_resumed_trainer_continues_to_the_bit(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    straight, resumed = make_run(tmp_path / "a", "straight"), make_run(tmp_path / "b", "resumed")
    with MegatronTrainer(straight, model, ray_cluster) as trainer:
        first, second = train(trainer, straight, 0), train(trainer, straight, 1)
    with MegatronTrainer(resumed, model, ray_cluster) as trainer:
        again = train(trainer, resumed, 0)
    assert [s.weights_digest for s in again.steps] == [s.weights_digest for s in first.steps]
    with MegatronTrainer(resumed, model, ray_cluster, rank_type=NoPickleRank) as trainer:
        assert trainer.load_state(again.state) == first.weights_digest
        continued = train(trainer, resumed, 1)
    assert continued.weights_digest == second.weights_digest
    assert shard_digests(resumed, continued) == shard_digests(straight, second)
    assert rollouts_seen(straight, first) == len(first.steps) * ROLLOUTS_PER_STEP
    assert rollouts_seen(straight, second) == rollouts_seen(resumed, continued) == 2 * rollouts_seen(straight, first)


def rollouts_seen(run: Run, trained: TrainedIteration) -> int:
    """What the learning-rate schedule of Megatron has advanced by."""
    return run.store.read_json(trained.state)["rollouts_seen"]


def shard_digests(run: Run, trained: TrainedIteration) -> list[str]:
    return [s["ref"]["sha256"] for s in run.store.read_json(trained.state)["shards"]]


def test_the_kl_reference_is_the_first_model(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    """The gradient of k3 is 0 where policy and reference agree: only from the second step on it can tell."""
    plain, bound = make_run(tmp_path / "a", "plain"), make_run(tmp_path / "b", "bound", kl_coefficient=0.5)
    with MegatronTrainer(plain, model, ray_cluster) as free, MegatronTrainer(bound, model, ray_cluster) as held:
        without = train(free, plain)
        first, second = train(held, bound), train(held, bound, 1)
    assert first.steps[0].weights_digest == without.steps[0].weights_digest
    assert first.steps[1].weights_digest != without.steps[1].weights_digest
    # With a reference that moved along, the KL term would be 0 again on an iteration's first step.
    assert all(second.steps[0].rollout_terms[i] > term + 1e-4 for i, term in first_terms(bound, 1).items())


def first_terms(run: Run, iteration: int) -> dict[int, float]:
    """Loss terms of a step with ratio 1 and no KL term: minus the advantage."""
    rows = rows_of(run, write_rollouts(run, iteration))
    return {r["rollout_id"]: -r["advantage"] for r in rows if r["rollout_id"] < 4}


def test_megatron_itself_does_the_step(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "counted")
    with MegatronTrainer(run, model, ray_cluster, rank_type=CountingRank) as trainer:
        trained = train(trainer, run)
        counts = ray.get([actor.counts.remote() for actor in trainer.ranks.actors])
    steps = len(trained.steps)
    wanted = {
        "forward_backward_no_pipelining/forward only": steps,
        "forward_backward_no_pipelining": steps,
        "finalize_model_grads": steps,
        "finish_grad_sync": steps,
        "step": steps,
    }
    assert counts == [wanted, wanted]


def test_the_ledger_has_every_sample_once(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "ledger")
    with MegatronTrainer(run, model, ray_cluster) as trainer:
        trained = train(trainer, run)
    events = [e for segment in trained.ledger for e in read_segment(run.store, run.run_id, segment)]
    by_kind = {kind: [e for e in events if e["event"] == kind] for kind in ("trained", "dummy", "step")}
    ids = sorted((e["rollout_id"], e["sibling"]) for e in by_kind["trained"])
    assert ids == [(r, s) for r, fan_out in enumerate(FAN_OUTS) for s in range(fan_out)]
    assert by_kind["dummy"] and all(e["weight"] == 0 for e in by_kind["dummy"])
    assert sorted((e["step"], e["rank"]) for e in by_kind["step"]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_killed_rank_is_named_and_nothing_is_left(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "killed")
    with MegatronTrainer(run, model, ray_cluster) as trainer:
        trainer.wait_ready()
        pids = [place.process for place in trainer.ranks.places]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(TrainerUnavailable, match=r"rank 1 died during iteration 0"):
            train(trainer, run)
    wait_until_gone(pids)


def wait_until_gone(pids: list[int]) -> None:
    import time

    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)


class StartsOtherwise(TrainerRank):
    def start(self) -> tuple[str, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise NotImplementedError


def test_ranks_that_do_not_start_give_their_gpus_back(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "not-started")
    with pytest.raises(TypeError), MegatronTrainer(run, model, ray_cluster, rank_type=StartsOtherwise):
        pass
    assert wait_until(lambda: ray.available_resources().get("GPU") == ray_cluster.offered_gpus(), 30)


def test_a_deadline_ends_the_iteration(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "late", deadline_seconds=0.001)
    with (
        MegatronTrainer(run, model, ray_cluster) as trainer,
        pytest.raises(TrainerUnavailable, match=r"rank [01, ]+ took more than 0.001 s for iteration 0"),
    ):
        train(trainer, run)


def test_an_infinite_loss_names_step_and_rollouts(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "infinite")
    table = read_table(run.store, write_rollouts(run).table)
    rows = table.to_pylist()
    advantages = [float("inf") if r["rollout_id"] == 5 else r["advantage"] for r in rows]
    broken = write_table(run.store, run.key("broken.parquet"), with_column(table, "advantage", advantages))
    rollouts = RolloutsRef(**{**vars(write_rollouts(run)), "table": broken})
    with MegatronTrainer(run, model, ray_cluster) as trainer, pytest.raises(NumericFailure) as failure:
        trainer.train(rollouts, write_plan(run, rows), publish_gradients=set())
    assert failure.value.ids == (0, 1, 5)
    assert failure.value.verdict == "REGRESSION"


class OneReplicaAstray(TrainerRank):
    """After each step rank 1 has other weights than rank 0."""

    def train(self, *given: Any, **named: Any) -> Any:
        step = self.core.optimizer.step

        def and_astray(rollouts: int) -> None:
            step(rollouts)
            if self.rank == 1:
                next(iter(self.core.model.named_parameters()))[1].data.add_(1e-3)

        self.core.optimizer.step = and_astray
        return super().train(*given, **named)


def test_replicas_that_differ_are_a_regression(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "astray")
    with (
        MegatronTrainer(run, model, ray_cluster, rank_type=OneReplicaAstray) as trainer,
        pytest.raises(ReplicasDiffer, match=r"After step 0 of iteration 0 .*: rank 0 \w+, rank 1 \w+") as failure,
    ):
        train(trainer, run)
    assert failure.value.verdict == "REGRESSION"


class WithoutMemory(TrainerRank):
    def train(self, *given: Any, **named: Any) -> Any:
        if self.rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore words.")
        return super().train(*given, **named)


def test_a_rank_that_runs_out_of_memory_says_so(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "out-of-memory")
    with MegatronTrainer(run, model, ray_cluster, rank_type=WithoutMemory) as trainer:
        trainer.wait_ready()
        pids = [place.process for place in trainer.ranks.places]
        with pytest.raises(
            TrainerUnavailable, match=r"Rank 1 .* during iteration 0: CUDA out of memory.*GiB\."
        ) as said:
            train(trainer, run)
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "the memory is not free yet"
    assert "More words" not in str(said.value) and "max_tokens_per_gpu" in str(said.value)


def test_state_of_another_layout_is_refused(tmp_path: Path, model: ModelRef, ray_cluster: RayCluster) -> None:
    run = make_run(tmp_path, "other-layout")
    state = run.store.publish_json("manifest.json", {"version": 1, "layout": {"data": 4}, "model": model.digest})
    with pytest.raises(ConfigurationError, match="layout"):
        MegatronTrainer(run, model, ray_cluster).load_state(state)
