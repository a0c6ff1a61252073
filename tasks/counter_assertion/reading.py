"""Read the evidence of a run from its store. What can not be read is named, not guessed."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from infra.errors import ContractViolation, FanlineError, StoreUnavailable
from infra.records.format import NotOfTheFormat, lines, record, table
from infra.records.rollouts import RolloutsRef, read_table
from infra.records.sources import ModelRef, PromptsRef
from infra.records.training import TrainedIteration
from infra.records.verdict import Outcome
from infra.run import Run
from infra.store import ArtifactStore, ObjectRef, sha256
from tasks.counter_assertion.evidence import (
    Absent,
    Event,
    Evidence,
    Fault,
    IterationEvidence,
    Key,
    LedgerFault,
    StoredSample,
    SyncLogProbs,
)


def read_evidence(run: Run, model: ModelRef | None, prompts: PromptsRef | None, fault: FanlineError | None) -> Evidence:
    """Everything that a run left behind, as far as it got.

    Args:
        model: the downloaded model on this host, None where the download failed.
        prompts: the prompts of the source, None where the download failed.
        fault: the error that ended the run early, None for a run that reached its last iteration.
    """
    reader = _Reader(run.store)
    iterations = tuple(reader.iteration(run, i) for i in range(run.scenario.rollout.iterations))
    source = reader.read("prompts", None, lambda: _prompts(run.store, prompts.table)) if prompts else None
    if prompts is None:
        reader.absent.append(Absent(part="prompts", iteration=None, reason="the prompts were not downloaded"))
    if model is None:
        reader.absent.append(Absent(part="model", iteration=None, reason="the model was not downloaded"))
    return Evidence(
        run_id=run.run_id,
        scenario=run.scenario,
        store=run.store,
        iterations=iterations,
        model=model,
        prompts=None if source is None else {row["prompt_id"]: row["label"] for row in source},
        prompt_digests={row["prompt_id"]: sha256(row["prompt"].encode()) for row in source or []},
        hooks_of_prompts=_hooks_of_prompts(source or [], "generate_function_path"),
        rewards_of_prompts=_hooks_of_prompts(source or [], "custom_rm_path"),
        fault=_as_fact(fault) if fault else None,
        ledger_faults=tuple(reader.ledger_faults),
        absent=tuple(reader.absent),
    )


def _as_fact(fault: FanlineError) -> Fault:
    return Fault(
        kind=type(fault).__name__,
        message=str(fault),
        ids=fault.ids,
        contract=isinstance(fault, ContractViolation),
        regression=fault.verdict == Outcome.REGRESSION.name,
        inconclusive=fault.verdict == Outcome.INCONCLUSIVE.name,
    )


class _Reader:
    """Collects parts, and the names of those that are absent or damaged."""

    def __init__(self, store: ArtifactStore):
        self.store = store
        self.absent: list[Absent] = []
        self.ledger_faults: list[LedgerFault] = []

    def iteration(self, run: Run, i: int) -> IterationEvidence:
        parts: dict[str, Any] = {}
        generated: RolloutsRef | None = self._record(run, i, "rollout", ("rollouts", "engine_log_probs", "ledger"))
        normalised: RolloutsRef | None = self._record(run, i, "reward_normalization", ("normalised",))
        trained: TrainedIteration | None = self._record(run, i, "training", ("trained", "plan", "trainer_log_probs"))
        sync = self._record(run, i, "sync", ("sync",))
        if generated:
            parts["rollouts_ref"] = generated
            parts["rollouts"] = self.read("rollouts", i, lambda: _samples(self.store, generated.table))
            engine = generated.log_probs
            parts["engine_log_probs"] = self.read("engine_log_probs", i, lambda: _log_probs(self.store, engine))
            segments = {r.key: r for ref in (generated, normalised, trained) if ref for r in ref.ledger}
            parts["ledger"] = self._ledger(run.run_id, i, list(segments.values()))
        if normalised:
            parts["normalised_ref"] = normalised
            parts["normalised"] = self.read("normalised", i, lambda: _samples(self.store, normalised.table))
        if trained:
            parts["trained"] = trained
            plan, trainer = trained.plan, trained.log_probs
            parts["plan"] = self.read("plan", i, lambda: record("plan", self.store.read_json(plan), plan.key))
            parts["trainer_log_probs"] = self.read("trainer_log_probs", i, lambda: _log_probs(self.store, trainer))
        if sync:
            # What is damaged of what it refers to counts as a damaged sync.
            compared = sync.log_probs
            parts["sync"] = sync
            if compared:
                parts["sync_log_probs"] = self.read("sync", i, lambda: _sync_log_probs(self.store, compared))
        # Of one iteration only, where the scenario asks for them: their checks say why there is none.
        parts |= {stage: self._published(run, i, stage, stage) for stage in ("replay", "invariance")}
        parts |= self._evaluation(run, i)
        return IterationEvidence(iteration=i, parts={k: v for k, v in parts.items() if v is not None})

    def _evaluation(self, run: Run, i: int) -> dict[str, Any]:
        """What an evaluation left, apart from what is trained; what is damaged counts as damaged rollouts."""
        ref: RolloutsRef | None = self._published(run, i, "evaluation", "rollouts")
        if ref is None:
            return {}
        return {
            "evaluation_ref": ref,
            "evaluation": self.read("rollouts", i, lambda: _samples(self.store, ref.table)),
            "evaluation_ledger": self._ledger(run.run_id, i, list(ref.ledger)),
        }

    def _record(self, run: Run, i: int, stage: str, gives: tuple[str, ...]) -> Any:
        """The record of a stage; without it, all parts that it gives are absent."""
        known = len(self.absent)
        found = self._published(run, i, stage, gives[0])
        if found is None:
            cause = (
                self.absent[known].reason if len(self.absent) > known else f"there is no {run.key(*_file(i, stage))}"
            )
            reason = f"stage {stage} of iteration {i} left no record ({cause})"
            self.absent += [Absent(part=p, iteration=i, reason=reason) for p in gives]
        return found

    def _published(self, run: Run, i: int, stage: str, part: str) -> Any:
        """A stage's record of the format, None where there is none."""

        def get() -> Any:
            document = run.finished(stage, i)
            return None if document is None else record(stage, document, run.key(*_file(i, stage)))

        return self.read(part, i, get)

    def read(self, part: str, iteration: int | None, get: Callable[[], Any]) -> Any:
        """The part, or None with the cause on record where the store does not give it, or gives something else."""
        try:
            return get()
        except StoreUnavailable as cause:
            self.absent.append(Absent(part=part, iteration=iteration, reason=str(cause), damaged=True))
        except NotOfTheFormat as cause:
            self.absent.append(Absent(part=part, iteration=iteration, reason=str(cause)))
        except (json.JSONDecodeError, UnicodeDecodeError, pa.ArrowInvalid) as cause:
            self.absent.append(Absent(part=part, iteration=iteration, reason=f"{part} can not be read: {cause}"))
        return None

    def _ledger(self, run_id: str, iteration: int, segments: list[ObjectRef]) -> tuple[Event, ...] | None:
        """All events of the segments that the stages published, or None where a segment is gone."""
        events: list[Event] = []
        for ref in segments:
            found = self.read("ledger", iteration, lambda ref=ref: lines(self.store.read(ref), ref.key))
            if found is None:
                return None
            events += self._own_lines(run_id, ref.key, found)
        return tuple(events)

    def _own_lines(self, run_id: str, segment: str, found: list[dict[str, Any]]) -> list[Event]:
        own = []
        for number, line in enumerate(found):
            what = None
            if line["run"] != run_id:
                what = f"belongs to run {line['run']}"
            elif line["line"] != number:
                what = f"says it is line {line['line']}: a line was written twice, cut or moved"
            if what:
                self.ledger_faults.append(LedgerFault(segment=segment, line=number, what=what))
            if line["run"] == run_id:
                own.append(line)
        return own


def _file(iteration: int, stage: str) -> tuple[str, int, str]:
    return "iterations", iteration, f"{stage}.json"


def _samples(store: ArtifactStore, ref: ObjectRef) -> tuple[StoredSample, ...]:
    rows = table("rollouts", read_table(store, ref), ref.key)
    return tuple(StoredSample(**row) for row in rows.to_pylist())


def _log_probs(store: ArtifactStore, ref: ObjectRef) -> dict[Key, np.ndarray]:
    rows = table("log-probs", read_table(store, ref), ref.key).to_pylist()
    return {(r["rollout_id"], r["sibling"]): np.asarray(r["log_probs"], dtype=np.float64) for r in rows}


def _sync_log_probs(store: ArtifactStore, ref: ObjectRef) -> tuple[SyncLogProbs, ...]:
    rows = table("sync-log-probs", read_table(store, ref), ref.key).to_pylist()
    return tuple(SyncLogProbs(**row) for row in rows)


def _prompts(store: ArtifactStore, ref: ObjectRef) -> list[dict[str, Any]]:
    return table("prompts", read_table(store, ref), ref.key).to_pylist()


def _hooks_of_prompts(source: list[dict[str, Any]], name: str) -> dict[str, str]:
    """The hooks that prompts name in their own metadata, under a name, by prompt id; null names none."""
    metadata = {row["prompt_id"]: json.loads(row["metadata"]) for row in source}
    return {k: m[name] for k, m in metadata.items() if m.get(name)}
