"""After each sync the engine answers with the new version, and with the log-probs of the trainer's new weights.

How far both are apart is computed from their stored log-probs; a record that says otherwise is red. One that stores
none is taken at its word, and the result says so.
"""

from collections.abc import Sequence

import numpy as np

from infra.records.verdict import CheckResult
from tasks.counter_assertion.bounds import bounds_of
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, SyncLogProbs
from tasks.counter_assertion.findings import Findings

NAME = "weight-sync"
NEEDS = ("rollouts", "rollouts_ref", "trained", "sync")
ROUNDING = 1e-5  # nats between a recorded figure and the same one from stored log-probs, which may be float32


def check(evidence: Evidence) -> CheckResult:
    """Versions, digests and log-probs of every sync; the next iteration has to be generated with the synced version."""
    found, worst, moved = Findings(), 0.0, []
    limit, version = 0.0, None
    older: set[str] = set()  # a rollout that goes on from an earlier iteration (partial rollouts) names them too
    for it in evidence.iterations:
        sync, where = it.sync, f"the sync of iteration {it.iteration}"
        limit = bounds_of(evidence.scenario.checks, it.trained.dtype).log_prob
        _generated_with(it, version, older, found)
        older |= {it.rollouts_ref.weight_version} if evidence.scenario.rollout.partial != "none" else set()
        version = sync.engine_version
        if not sync.engine_version == sync.weight_version == it.trained.weight_version:
            found.add(
                f"after {where} the engine answers with version {sync.engine_version!r}, the trainer has "
                f"{it.trained.weight_version!r}",
                it.iteration,
            )
        if sync.weights_digest != it.trained.weights_digest:
            found.add(
                f"{where} sent weights {sync.weights_digest[:12]}, trained were {it.trained.weights_digest[:12]}",
                it.iteration,
            )
        error, move = _measured(it, where, found)
        if not error <= limit:
            found.add(
                f"after {where} engine and trainer log-probs differ by {error:.3g} on stored ones, "
                f"allowed is {limit:g} (the steps moved them by {move:.3g})",
                it.iteration,
            )
        if sync.sequences_compared == 0:
            found.add(f"{where} compared no sequence", it.iteration)
        worst, moved = max(worst, error), [*moved, move]
    figures = {"syncs": len(moved), "largest log-prob difference": worst, "allowed": limit}
    figures["least move by training"] = min(moved, default=0.0)
    figures["syncs taken at their word"] = sum(it.sync_log_probs is None for it in evidence.iterations)
    if not found.words and min(moved, default=0.0) <= limit:
        return _too_small_to_tell(evidence, figures)
    good = f"{len(moved)} syncs: log-probs agree within {worst:.2g}, training moved them by {min(moved):.2g} at least"
    if words := figures["syncs taken at their word"]:
        good += f"; of {words} only the recorded figures say so: their log-probs are not stored"
    return found.result(NAME, good, figures)


def _measured(it: IterationEvidence, where: str, found: Findings) -> tuple[float, float]:
    """How far the engine is from the trainer, and how far the steps moved the trainer."""
    sync, rows = it.sync, it.sync_log_probs
    if rows is None:
        return sync.max_log_prob_error, sync.moved_log_probs
    known = {(s.key, s.response_length) for s in (*it.rollouts, *it.parts.get("normalised", ()))}
    for row in rows:
        if {(row.key, len(values)) for values in (row.engine, row.trainer, row.before, row.after)} - known:
            found.add(f"{where} compared {row.key}, which is no sample of this length", row.rollout_id)
            return sync.max_log_prob_error, sync.moved_log_probs
    if len(rows) != sync.sequences_compared:
        found.add(f"{where} compared {sync.sequences_compared} sequences and stored {len(rows)}", it.iteration)
    error, move = _largest(rows, "engine", "trainer"), _largest(rows, "before", "after")
    for what, said, got in (
        ("engine and trainer differ", sync.max_log_prob_error, error),
        ("the steps moved log-probs", sync.moved_log_probs, move),
    ):
        if not abs(said - got) <= ROUNDING:
            found.add(f"the record of {where} says that {what} by {said:.3g}, stored log-probs say {got:.3g}")
    return error, move


def _largest(rows: Sequence[SyncLogProbs], one: str, other: str) -> float:
    apart = [np.abs(np.subtract(getattr(row, one), getattr(row, other))) for row in rows]
    return float(np.concatenate([np.zeros(0), *apart]).max(initial=0.0))


def _generated_with(it: IterationEvidence, version: str | None, older: set[str], found: Findings) -> None:
    if version is not None and it.rollouts_ref.weight_version != version:
        found.add(
            f"iteration {it.iteration} was generated with version {it.rollouts_ref.weight_version!r}, not {version!r}",
            it.iteration,
        )
    for s in it.rollouts:
        strange = set(s.weight_version.split(",")) - {"", it.rollouts_ref.weight_version, *older}
        if s.iteration == it.iteration and strange:
            found.add(
                f"rollout {s.rollout_id} was generated with weights {s.weight_version!r}, the iteration with "
                f"{it.rollouts_ref.weight_version!r}",
                s.rollout_id,
            )


def _too_small_to_tell(evidence: Evidence, figures: dict) -> CheckResult:
    """Weights that did not move look synced in any case."""
    reason = (
        f"versions agree, but training moved the log-probs by {figures['least move by training']:.2g} only: "
        "a sync that did nothing would look the same"
    )
    status = "not run" if evidence.scenario.plumbing_only else "inconclusive"
    return CheckResult(name=NAME, status=status, reason=reason, figures=figures)
