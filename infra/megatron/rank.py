"""One trainer rank, the class behind a Ray actor. Ranks read plan and rollouts from the store themselves."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from infra.megatron.layout import Layout
from infra.megatron.reports import DeviceMemory, PushResult, RankIteration, RankPlace, RankStep, SampleLogProbs
from infra.nodes import LOOPBACK, interface_of, own_address
from infra.records.plan import PlannedSample, TrainingPlan
from infra.records.rollouts import RolloutsRef, read_table
from infra.records.sources import ModelRef
from infra.run import Run
from infra.settings import visible_devices
from infra.sources.model import on_this_host
from infra.store import ObjectRef

if TYPE_CHECKING:
    from infra.ledger import LedgerWriter
    from infra.megatron.broadcast import Broadcast
    from infra.megatron.device import Kind
    from infra.megatron.forward import TrainingBatch
    from infra.megatron.weights import Receiver, Transport


MEETING_SECONDS = 300.0


class TrainerRank:
    """Every method but `rendezvous` is a collective: the driver calls it on all ranks at once.

    torch and Megatron-core are imported by `start`, after the process has its environment.
    """

    def __init__(self, run: Run, model: ModelRef, rank: int, kind: Kind, one_host: bool = True):
        self.run, self.model_ref, self.rank = run, model, rank
        self.kind: Kind = kind
        self.one_host = one_host
        self.layout = Layout.of(run.scenario.training)
        self._broadcast: Broadcast | None = None
        self._log_probs_seconds = 0.0

    def rendezvous(self) -> tuple[str, int]:
        """Rank 0 opens the store that the ranks meet at, and says where: host and port."""
        from torch.distributed import TCPStore  # type: ignore[reportPrivateImportUsage]

        host = LOOPBACK if self.one_host else own_address()
        self._meeting = TCPStore(host, 0, None, is_master=True, wait_for_workers=False)
        return host, self._meeting.port

    def start(self, meeting_at: tuple[str, int]) -> RankPlace:
        """Join the other ranks and load the model; says where this rank is."""
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[reportPrivateImportUsage]

        from infra.megatron.core import TrainerCore
        from infra.megatron.device import Device

        scenario = self.run.scenario
        # The backends ask the resolver else, and it may name an address that the other hosts do not reach.
        address = LOOPBACK if self.one_host else own_address()
        os.environ["GLOO_SOCKET_IFNAME"] = interface_of(address)
        if not self.one_host:
            os.environ["NCCL_SOCKET_IFNAME"] = interface_of(address)
        device = Device.prepare(self.kind, scenario.dtype, deterministic=scenario.deterministic)
        # The driver's deadline comes first: it can say what took too long.
        limit = datetime.timedelta(seconds=scenario.training.deadline_seconds + MEETING_SECONDS)
        meeting = self._meeting if self.rank == 0 else TCPStore(*meeting_at, None, is_master=False, timeout=limit)
        dist.init_process_group(
            device.backend, store=meeting, rank=self.rank, world_size=self.layout.world_size, timeout=limit
        )
        model = self.model_ref if self.one_host else on_this_host(self.model_ref)
        self.core = TrainerCore.build(scenario, self.layout, device, model.path)
        return RankPlace(own_address(), os.getpid(), ",".join(visible_devices()))

    def train(self, rollouts: RolloutsRef, plan: ObjectRef, publish_gradients: frozenset[int]) -> RankIteration:
        """All steps of one iteration. Log-probs of every step come first, from the weights of its beginning.

        Raises:
            NumericFailure: a loss or gradient is not finite.
        """
        from infra.ledger import LedgerWriter
        from infra.megatron.state import publish_shard

        with LedgerWriter(self.run.run_id, "training", rollouts.iteration, self.run.spool) as ledger:
            steps, log_probs = self._take_steps(rollouts, plan, publish_gradients, ledger=ledger)
            segment = ledger.seal(self.run.store)
        started = time.monotonic()
        state = publish_shard(self.run, rollouts.iteration, self.core)
        return RankIteration(
            rank=self.rank,
            steps=steps,
            log_probs=log_probs,
            ledger=segment,
            rollouts_seen=self.core.optimizer.rollouts,
            state=state,
            log_probs_seconds=self._log_probs_seconds,
            state_seconds=time.monotonic() - started,
        )

    def rehearse(
        self, rollouts: RolloutsRef, plan: ObjectRef, publish_gradients: frozenset[int], only: int | None
    ) -> tuple[RankStep, ...]:
        """The steps of an iteration once more, for comparison: no ledger, no state, only the gradients asked for.

        Args:
            only: that step is computed alone and not taken, the weights stay as they are.
        """
        return self._take_steps(rollouts, plan, publish_gradients, only=only)[0]

    def _take_steps(
        self,
        rollouts: RolloutsRef,
        plan: ObjectRef,
        publish_gradients: frozenset[int],
        *,
        ledger: LedgerWriter | None = None,
        only: int | None = None,
    ) -> tuple[tuple[RankStep, ...], tuple[SampleLogProbs, ...]]:
        """What each step did, and the log-probs of all samples before the first of them."""
        from infra.megatron.step import StepRunner

        plan_record = TrainingPlan.from_dict(self.run.store.read_json(plan))
        packer = self._packer(rollouts.table)
        place = self.core.place
        packed = [packer.pack_all([b.samples for b in step.ranks[place.data]]) for step in plan_record.steps]
        started = time.monotonic()
        # The same packing as in training: on the first step the ratio is 1 to the bit.
        temperature = self.run.scenario.rollout.temperature
        old = [self._log_probs(batches, temperature) for batches in packed]
        with self.core.reference_weights():
            wanted = self.run.scenario.training.uses_reference
            reference = [self._log_probs(b, temperature) if wanted else [None] * len(b) for b in packed]
        batches = self._training_batches(rollouts, packed, old, reference)
        self._log_probs_seconds = time.monotonic() - started
        runner = StepRunner(
            core=self.core,
            run=self.run,
            iteration=rollouts.iteration,
            rollouts_per_step=plan_record.global_batch_size,
            ledger=ledger,
            update=only is None,
        )
        steps = tuple(
            runner.take(step, items, publish_gradient=step.index in publish_gradients)
            for step, items in zip(plan_record.steps, batches, strict=True)
            if only in (None, step.index)
        )
        return steps, tuple(_by_sample(packed, old)) if place.leader else ()

    def log_probs(self, table: ObjectRef, rows: Sequence[int], temperature: float) -> list[list[float]]:
        """[response_length] each, of this data-parallel share's rows; empty on ranks that do not lead their share."""
        tokens = read_table(self.run.store, table)["tokens"]
        lengths = pc.list_value_length(tokens).to_numpy()  # type: ignore[attr-defined]
        most = self.run.scenario.training.max_tokens_per_gpu or int(lengths.max())
        samples = [PlannedSample(row=r, rollout_id=0, sibling=0, weight=0.0) for r in rows]
        batches = self._packer(table).pack_all(_batches_within(samples, lengths, most)) if samples else []
        found = self._log_probs(batches, temperature) if batches else []
        if not self.core.place.leader:
            return []
        return [x.tolist() for batch, each in zip(batches, found, strict=True) for x in batch.split(each)]

    def push_weights(self, receivers: Sequence[Receiver], version: str) -> PushResult | None:
        """Gather the whole model and send it to this rank's receivers; rank 0 reports, with or without any."""
        from infra.megatron.weights import push

        started = time.monotonic()
        weights, sent = self.core.whole_weights(), None
        try:
            if receivers or self.rank == 0:
                sent = push(weights, receivers, version, self._transport())
                sent = replace(sent, seconds=time.monotonic() - started)
        finally:
            del weights
            self.core.forget_copies()
        return sent

    def _transport(self) -> Transport:
        from infra.megatron.broadcast import Broadcast
        from infra.megatron.weights import by_folder, by_memory

        how = self.run.scenario.engine.weight_sync
        if how == "disk":
            return by_folder(self.run.spool)
        if how == "memory":
            return by_memory
        if self._broadcast is None:
            host = LOOPBACK if self.one_host else own_address()
            self._broadcast = Broadcast(host, self.core.device.backend, self.run.run_id)
        return self._broadcast

    def give_back_memory(self) -> DeviceMemory | None:
        """Optimizer state to the host, gradients dropped; the model stays. Says what the GPU has then."""
        return self.core.give_back_memory()

    def take_memory(self) -> DeviceMemory | None:
        """Undo `give_back_memory`; says what the GPU had before."""
        return self.core.take_memory()

    def load_state(self, shard: ObjectRef, rollouts_seen: int) -> str:
        """Become the rank that published the shard; returns the weights digest on rank 0."""
        from infra.megatron.state import load_shard

        load_shard(self.run, shard, rollouts_seen, self.core)
        return self.core.whole_digest()

    def weights_digest(self) -> str:
        return self.core.whole_digest()

    def _training_batches(
        self, rollouts: RolloutsRef, packed: list[list], old: list[list], reference: list[list]
    ) -> list[list[TrainingBatch]]:
        """For each step, its micro-batches with all that their loss compares with; off the last stage, without."""
        from infra.megatron.advantages import iteration_advantages
        from infra.megatron.engine_log_probs import engine_log_probs
        from infra.megatron.forward import TrainingBatch
        from infra.megatron.values import stored_values

        training = self.run.scenario.training
        if not self.core.place.last_stage:
            return [[TrainingBatch(batch=batch) for batch in step] for step in packed]
        nothing = [[None] * len(step) for step in packed]
        values = stored_values(read_table(self.run.store, rollouts.table), packed) if training.uses_values else nothing
        advantages = iteration_advantages(packed, old, reference, values, training, rollouts.iteration)
        engine = engine_log_probs(self.run.store, rollouts, packed) if training.uses_engine_log_probs else None
        columns = (packed, old, reference, advantages, engine or nothing)
        return [
            [
                TrainingBatch(batch=b, old=o, reference=r, advantages=a, engine=e)
                for b, o, r, a, e in zip(*step, strict=True)
            ]
            for step in zip(*columns, strict=True)
        ]

    def _packer(self, table: ObjectRef):
        from infra.megatron.packing import Packer

        return Packer(read_table(self.run.store, table), self.layout, self.core.place, self.core.device.torch_device)

    def _log_probs(self, batches: list, temperature: float) -> list:
        """[responses] of each micro-batch on the last pipeline stage; None elsewhere."""
        from infra.megatron.forward import LogProbForward, forward_only

        step = LogProbForward(shape=self.core.shape, temperature=temperature)
        found = forward_only(self.core.wrapped, step, batches)
        return found if self.core.place.last_stage else [None] * len(batches)


def _batches_within(samples: Sequence[PlannedSample], lengths: np.ndarray, most: int) -> list[list[PlannedSample]]:
    """Runs of consecutive samples of at most so many tokens together; one sample at least."""
    batches: list[list[PlannedSample]] = []
    tokens = most
    for sample in samples:
        tokens += lengths[sample.row]
        if tokens > most:
            batches.append([])
            tokens = lengths[sample.row]
        batches[-1].append(sample)
    return batches


def _by_sample(packed: list, log_probs: list) -> list[SampleLogProbs]:
    """Each sample once: a dummy repeats a sample that is there anyway."""
    return [
        SampleLogProbs(rollout_id=sample.rollout_id, sibling=sample.sibling, log_probs=values.float().cpu().numpy())
        for batches, step in zip(packed, log_probs, strict=True)
        for batch, found in zip(batches, step, strict=True)
        for sample, values in zip(batch.samples, batch.split(found), strict=True)
        if not sample.dummy
    ]
