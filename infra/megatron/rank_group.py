"""The trainer ranks as the driver sees them: Ray actors in one placement group that work, and end, together."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from infra.errors import EngineUnavailable, FanlineError, TrainerUnavailable
from infra.megatron.rank import TrainerRank
from infra.megatron.reports import RankPlace
from infra.nodes import described, own_address
from infra.ray_cluster import ROOT, RayCluster, signals_heard

LOOK_SECONDS = 1.0
GRACE_SECONDS = 5.0  # after one rank's error, for a dead peer to be noticed: its neighbours see a closed socket first
PLACEMENT_SECONDS = 60.0
GONE_SECONDS = 10.0
OUT_OF_MEMORY = "out of memory"  # in the words of PyTorch's allocator, of CUDA and of NCCL
SHARED_MEMORY = Path("/dev/shm")

Arguments = Callable[[int], tuple[Any, ...]]


@dataclass(frozen=True)
class Waiting:
    """A collective call in flight: one answer a rank, by rank."""

    what: str
    answers: list[ray.ObjectRef]


@dataclass
class RankGroup:
    """One actor a rank, each with one CPU and one GPU of the cluster; `places` are where, once they started."""

    cluster: RayCluster
    run_id: str
    rank_type: type[TrainerRank] = TrainerRank
    actors: list[Any] = field(default_factory=list)
    places: list[RankPlace] = field(default_factory=list)
    bundles: PlacementGroup | None = None

    def create(self, ranks: int, environment: dict[str, str], arguments: Arguments) -> None:
        """Reserve the bundles and create the actors; their imports go on when this returns.

        Raises:
            TrainerUnavailable: the cluster has not the CPUs and GPUs; gives both numbers.
        """
        labels = self.cluster.trainer_labels
        self.bundles = placement_group(
            [{"CPU": 1, "GPU": 1}] * ranks, strategy="PACK", bundle_label_selector=[labels] * ranks
        )
        if not self.bundles.wait(PLACEMENT_SECONDS):
            raise TrainerUnavailable(
                f"The trainer of run {self.run_id} needs {ranks} CPUs and GPUs; of the Ray cluster "
                f"{described(ray.nodes(), labels)}, not all free.",
                next_step="Free them, or lower the parallel sizes of the scenario.",
                ids=[self.run_id],
            )
        actor = ray.remote(num_cpus=1, num_gpus=1, max_restarts=0)(self.rank_type)
        for rank in range(ranks):
            place = PlacementGroupSchedulingStrategy(self.bundles, rank)
            variables = {**environment, "PYTHONPATH": python_path()}
            options = {"scheduling_strategy": place, "runtime_env": {"env_vars": variables}}
            self.actors.append(actor.options(**options).remote(*arguments(rank)))

    def call(self, method: str, arguments: Arguments, what: str) -> Waiting:
        """Call a method on all ranks, each with arguments of its own; `what` names it in errors.

        Raises:
            TrainerUnavailable: the ranks were ended.
        """
        if not self.actors:
            raise self._unavailable(f"its ranks were ended before {what}", [])
        answers = [getattr(actor, method).remote(*arguments(rank)) for rank, actor in enumerate(self.actors)]
        return Waiting(what, answers)

    def wait(self, call: Waiting, seconds: float) -> list[Any]:
        """All ranks' answers, by rank. When one fails, all ranks are killed; when it is an engine that failed, none is:
        the ranks are as they were, and can send their weights once more.

        Raises:
            EngineUnavailable: the engine that a rank sent to.
            TrainerUnavailable: a rank died or failed, the cluster is gone, or the deadline passed; names the ranks.
            FanlineError: what a rank raised itself (a numeric failure, a store that refuses).
        """
        try:
            with signals_heard():
                self._wait_for_all(call, time.monotonic() + seconds, seconds)
                return ray.get(call.answers)
        except EngineUnavailable:
            ray.wait(call.answers, num_returns=len(call.answers), timeout=GRACE_SECONDS)
            raise
        except BaseException:
            self.kill()
            raise

    def _wait_for_all(self, call: Waiting, deadline: float, seconds: float) -> None:
        pending = list(call.answers)
        while pending:
            self.cluster.check()
            done, pending = ray.wait(pending, num_returns=1, timeout=LOOK_SECONDS)
            if any(_error_of(answer) for answer in done):
                self._raise_the_cause(call)
            if pending and time.monotonic() > deadline:
                late = [rank for rank, answer in enumerate(call.answers) if answer in pending]
                raise self._unavailable(f"rank {_join(late)} took more than {seconds:g} s for {call.what}", late)

    def _raise_the_cause(self, call: Waiting) -> None:
        """Of several ranks' errors the one that explains the others: a named one, then a dead rank, then any."""
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            done, pending = ray.wait(call.answers, num_returns=len(call.answers), timeout=LOOK_SECONDS / 10)
            found = [(call.answers.index(answer), _error_of(answer)) for answer in done]
            errors = sorted([(rank, error) for rank, error in found if error], key=lambda e: e[0])
            for rank, error in errors:
                cause = getattr(error, "cause", None)
                if isinstance(cause, FanlineError):
                    raise cause
                if OUT_OF_MEMORY in str(cause).lower():
                    raise self._out_of_memory(rank, call.what, cause) from error
            dead = [rank for rank, error in errors if isinstance(error, RayActorError)]
            if dead or not pending or time.monotonic() > deadline:
                break
        self.cluster.check()
        if dead:
            raise self._unavailable(f"rank {_join(dead)} died during {call.what}", dead)
        rank, error = errors[0]
        raise self._unavailable(f"rank {rank} failed during {call.what}: {error}", [rank]) from error

    def kill(self) -> None:
        """End all ranks, give the bundles back and remove the tensors that they left in shared memory."""
        if not self.cluster.gone:
            for actor in self.actors:
                with contextlib.suppress(ActorDiedError):
                    ray.kill(actor)
            if self.bundles is not None:
                remove_placement_group(self.bundles)
        self.actors, self.bundles = [], None
        own = [place for place in self.places if place.host == own_address()]
        deadline = time.monotonic() + GONE_SECONDS  # Ray kills behind our back, and others want the memory
        while any(Path(f"/proc/{rank.process}").exists() for rank in own) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 50)
        for rank in own:
            for block in SHARED_MEMORY.glob(f"torch_{rank.process}_*"):
                block.unlink(missing_ok=True)
        self.places = []

    def _out_of_memory(self, rank: int, what: str, cause: object) -> TrainerUnavailable:
        said = str(cause).strip().splitlines()[0].partition(" If reserved but unallocated")[0][:600]
        return TrainerUnavailable(
            f"Rank {rank} of the trainer of run {self.run_id} ran out of memory during {what}: {said}",
            next_step="Lower training.max_tokens_per_gpu, say training.recompute true, or use more ranks.",
            ids=[self.run_id, rank],
        )

    def _unavailable(self, what: str, ranks: Sequence[int]) -> TrainerUnavailable:
        return TrainerUnavailable(
            f"The trainer of run {self.run_id} is gone: {what}.",
            next_step=f"Resume the run; Ray's output is in {self.cluster.log_path}.",
            ids=[self.run_id, *ranks],
        )


def python_path() -> str:
    """What an actor's interpreter needs: this project, and all that this process was told to look in (Ray too)."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _error_of(answer: ray.ObjectRef) -> RayError | None:
    """The error that a finished answer holds, if it holds one."""
    try:
        ray.get(answer)
    except RayError as error:
        return error
    return None


def _join(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
