"""The trainer of a run, on the driver's side: starts the ranks, hands them references, puts their reports together."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from infra.errors import ConfigurationError, TrainerUnavailable
from infra.megatron.device import actor_environment, dtype_name, resolve
from infra.megatron.layout import Layout
from infra.megatron.numeric import ReplicasDiffer
from infra.megatron.rank import TrainerRank
from infra.megatron.rank_group import RankGroup, Waiting
from infra.megatron.reports import PUSH_SECONDS, DeviceMemory, PushResult, RankIteration, combine
from infra.nodes import own_address
from infra.ray_cluster import RayCluster
from infra.records.plan import TrainingPlan
from infra.records.rollouts import RolloutsRef, log_probs_table, write_table
from infra.records.sources import ModelRef
from infra.records.training import StepResult, TrainedIteration
from infra.run import Run
from infra.scenario.review import refuse_unsupported
from infra.sglang.address import ServerAddress
from infra.store import ObjectRef, canonical_json, sha256
from infra.turns import Turns

if TYPE_CHECKING:
    from infra.megatron.weights import Receiver

STATE_VERSION = 1
START_SECONDS = 300.0
HAND_OVER_SECONDS = 300.0


class MegatronTrainer:
    """Megatron-core ranks in Ray actors. Context manager: entering starts the ranks, `wait_ready` waits for them.

    Any failure of a rank ends all of them; a new trainer continues from a published state.
    """

    def __init__(self, run: Run, model: ModelRef, cluster: RayCluster, *, rank_type: type[TrainerRank] = TrainerRank):
        self.run, self.model, self.cluster = run, model, cluster
        self.layout = Layout.of(run.scenario.training)
        self.ranks = RankGroup(cluster, run.run_id, rank_type)
        self._starting: Waiting | None = None
        self.turns: Turns | None = None  # where an engine shares the GPUs

    def start(self) -> None:
        """Create the ranks; they load the model while the caller goes on."""
        refuse_unsupported(self.run.scenario)
        self.cluster.connect()
        kind = resolve(self.run.scenario)
        with_servers = self.run.scenario.engine.weight_sync == "distributed"
        environment = actor_environment(kind, with_servers=with_servers)
        one_host = self.cluster.local
        self.ranks.create(
            self.layout.world_size, environment, lambda rank: (self.run, self.model, rank, kind, one_host)
        )
        meeting = self.ranks.actors[0].rendezvous.remote()
        self._starting = self.ranks.call("start", lambda _: (meeting,), "its start")

    def wait_ready(self) -> None:
        """Until every rank holds the model.

        Raises:
            TrainerUnavailable: a rank died, or did not get ready in time.
            ConfigurationError: the model or the layout can not be trained.
        """
        if self._starting is not None:
            self.ranks.places = self.ranks.wait(self._starting, START_SECONDS)
            self._starting = None

    def other_hosts(self) -> list[str]:
        """Addresses of the nodes other than the driver's that ranks are on; none before they are ready."""
        here = own_address()
        return sorted({place.host for place in self.ranks.places if place.host != here and not self.cluster.local})

    def train(self, rollouts: RolloutsRef, plan: ObjectRef, *, publish_gradients: set[int]) -> TrainedIteration:
        """All steps of a plan.

        Args:
            publish_gradients: indices of the steps whose unclipped gradient goes to the store.
        Raises:
            TrainerUnavailable: a rank died or took longer than the scenario's deadline; names rank and iteration.
            NumericFailure: a loss or gradient is not finite; names step and rollouts.
            ReplicasDiffer: data-parallel ranks hold different weights after a step; names the step and the ranks.
        """
        record = self._own_plan(plan)
        if self.turns is not None:
            self.turns.for_training()
        asked = frozenset(publish_gradients)
        reports: list[RankIteration] = self._together(
            "train", lambda _: (rollouts, plan, asked), f"iteration {rollouts.iteration}"
        )
        _refuse_replicas_that_differ(rollouts.iteration, reports)
        by_step = zip(*(r.steps for r in reports), strict=True)
        steps = tuple(combine(rollouts.iteration, s, ranks) for s, ranks in zip(record.steps, by_step, strict=True))
        digest = steps[-1].weights_digest
        return TrainedIteration(
            iteration=rollouts.iteration,
            plan=plan,
            steps=steps,
            log_probs=self._publish_log_probs(rollouts.iteration, reports),
            state=self._publish_state(rollouts.iteration, reports, digest),
            weights_digest=digest,
            weight_version=f"{rollouts.iteration + 1:04d}-{digest[:12]}",
            ledger=tuple(r.ledger for r in reports),
            dtype=dtype_name(self.run.scenario),
            log_probs_seconds=max(r.log_probs_seconds for r in reports),
            state_seconds=max(r.state_seconds for r in reports),
        )

    def rehearse(
        self, rollouts: RolloutsRef, plan: ObjectRef, *, publish_gradients: set[int], only: int | None = None
    ) -> tuple[StepResult, ...]:
        """The steps of a plan once more, for comparison: only the gradients asked for are published of them.

        Args:
            only: index of a step that is computed alone and not taken; the weights stay as they are.
        Raises:
            TrainerUnavailable, NumericFailure: as `train`.
        """
        record = self._own_plan(plan)
        asked = frozenset(publish_gradients)
        what = f"the rehearsal of iteration {rollouts.iteration}"
        reports = self._together("rehearse", lambda _: (rollouts, plan, asked, only), what)
        steps = [s for s in record.steps if only in (None, s.index)]
        by_step = zip(*reports, strict=True)
        return tuple(combine(rollouts.iteration, s, ranks) for s, ranks in zip(steps, by_step, strict=True))

    def log_probs(self, table: ObjectRef, rows: list[int], temperature: float) -> list[list[float]]:
        """[rows][response_length] log-probs of stored samples under the current weights, at a temperature."""
        shares = [rows[k :: self.layout.data] for k in range(self.layout.data)]
        answers = self._together(
            "log_probs", lambda rank: (table, shares[self._data_rank(rank)], temperature), "log-probs"
        )
        found: list[list[float]] = [[] for _ in rows]
        for rank, answer in enumerate(answers):
            if answer:
                found[self._data_rank(rank) :: self.layout.data] = answer
        return found

    def push_weights(self, receivers: Sequence[Receiver], version: str) -> PushResult:
        """Send the current weights to every engine (its `receivers`), as a version.

        Raises:
            EngineUnavailable: an engine does not take them.
        """
        self.wait_ready()
        with self.turns.for_generation() if self.turns is not None else contextlib.nullcontext():
            shares = self._shares(receivers)
            what, seconds = f"the push of weights {version}", PUSH_SECONDS * (1 + len(receivers))
            sent = self._together("push_weights", lambda r: (shares[r], version), what, seconds)
        made = [one for one in sent if one is not None]
        return replace(
            made[0], seconds=max(one.seconds for one in made), digest=_digest_of_all([m.digest for m in made])
        )

    def memory_of_ranks(self, do: str) -> list[DeviceMemory]:
        """What `give_back_memory` or `take_memory` says of each rank's GPU; nothing of ranks without one."""
        said = self._together(do, lambda _: (), do.replace("_", " "), HAND_OVER_SECONDS)
        return [memory for memory in said if memory is not None]

    def _shares(self, receivers: Sequence[Receiver]) -> list[list[Receiver]]:
        """Whom each rank sends to: the server on its own GPU, and rank 0 all others (with a folder or group, all)."""
        own_gpu = self.run.scenario.engine.weight_sync == "memory"
        devices = [place.device for place in self.ranks.places if own_gpu]
        shares: list[list[Receiver]] = [[] for _ in range(self.layout.world_size)]
        for receiver in receivers:
            own = ",".join(receiver.devices) if isinstance(receiver, ServerAddress) else ""
            shares[devices.index(own) if own in devices else 0].append(receiver)
        return shares

    def load_state(self, state: ObjectRef) -> str:
        """Continue as the trainer that published the state, to the bit; returns the weights digest.

        Raises:
            ConfigurationError: the state is of another layout, model or version.
            TrainerUnavailable: the loaded weights are not those of the manifest.
        """
        manifest = self.run.store.read_json(state)
        self._refuse_other_state(state, manifest)
        if self.turns is not None:
            self.turns.for_training()
        shards = [ObjectRef.from_dict(s["ref"]) for s in manifest["shards"]]
        loaded = self._together(
            "load_state", lambda rank: (shards[rank], manifest["rollouts_seen"]), f"loading {state.key}"
        )
        digest = _digest_of_all(loaded)
        if digest != manifest["weights_digest"]:
            raise TrainerUnavailable(
                f"After loading {state.key} the weights have digest {digest[:12]}, the state is of "
                f"{manifest['weights_digest'][:12]}.",
                ids=[state.key],
            )
        return digest

    def weights_digest(self) -> str:
        """As `infra.weights_digest.digest`, of the tensors under their Hugging Face names."""
        return self._together("weights_digest", lambda _: (), "the weights digest")[0]

    def stop(self) -> None:
        """End all ranks."""
        self.ranks.kill()

    def _own_plan(self, plan: ObjectRef) -> TrainingPlan:
        record = TrainingPlan.from_dict(self.run.store.read_json(plan))
        if record.data_parallel != self.layout.data:
            raise ConfigurationError(
                f"The plan {plan.key} is for {record.data_parallel} data-parallel ranks, the trainer has "
                f"{self.layout.data}.",
                ids=[plan.key],
            )
        return record

    def _together(self, method: str, arguments: Any, what: str, seconds: float | None = None) -> list[Any]:
        """All ranks' answers; they may take `seconds`, by default as long as an iteration."""
        self.wait_ready()
        call = self.ranks.call(method, arguments, what)
        return self.ranks.wait(call, seconds or self.run.scenario.training.deadline_seconds)

    def _data_rank(self, rank: int) -> int:
        inner = self.layout.tensor * self.layout.context
        return rank // inner % self.layout.data

    def _publish_log_probs(self, iteration: int, reports: Sequence[RankIteration]) -> ObjectRef:
        samples = sorted((s for r in reports for s in r.log_probs), key=lambda s: (s.rollout_id, s.sibling))
        rows = [{"rollout_id": s.rollout_id, "sibling": s.sibling, "log_probs": s.log_probs} for s in samples]
        key = self.run.key("iterations", iteration, "trainer-log-probs-{digest}.parquet")
        return write_table(self.run.store, key, log_probs_table(rows))

    def _publish_state(self, iteration: int, reports: Sequence[RankIteration], digest: str) -> ObjectRef:
        shards = [r.state for r in reports]
        manifest = {
            "version": STATE_VERSION,
            "iteration": iteration,
            "layout": self.layout.to_dict(),
            "model": self.model.digest,
            "rollouts_seen": reports[0].rollouts_seen,
            "weights_digest": digest,
            "shards": [{"rank": s.rank, "ref": s.ref.to_dict(), "parts": s.parts} for s in shards],
        }
        name = f"manifest-{sha256(canonical_json(manifest))[:12]}.json"
        return self.run.store.publish_json(self.run.key("iterations", iteration, "state", name), manifest)

    def _refuse_other_state(self, state: ObjectRef, manifest: dict[str, Any]) -> None:
        here = {"version": STATE_VERSION, "layout": self.layout.to_dict(), "model": self.model.digest}
        for name, value in here.items():
            if manifest[name] != value:
                raise ConfigurationError(
                    f"The state {state.key} has {name} {manifest[name]}, this trainer has {value}.",
                    next_step="Resume with the scenario and the code that wrote it.",
                    ids=[state.key],
                )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()  # whoever has not entered does not leave: ranks would hold their GPUs
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()


def _digest_of_all(digests: Sequence[str]) -> str:
    """The digest that all replicas have, or else each one's, with commas between; ranks that give none do not count."""
    return ",".join(dict.fromkeys(filter(None, digests)))


def _refuse_replicas_that_differ(iteration: int, reports: Sequence[RankIteration]) -> None:
    """Raises ReplicasDiffer where replicas of the model, which took the same step, have other weights after it."""
    for step in zip(*(report.steps for report in reports), strict=True):
        digests = {rank: one.weights_digest for rank, one in enumerate(step) if one.weights_digest}
        if len(set(digests.values())) > 1:
            raise ReplicasDiffer.of(iteration, step[0].step, digests)
