"""After each sync the engine answers with the new version, and with the log-probs of the trainer's new weights."""

from infra.records.verdict import CheckResult
from tasks.counter_assertion.bounds import bounds_of
from tasks.counter_assertion.evidence import Evidence, IterationEvidence
from tasks.counter_assertion.findings import Findings

NAME = "weight-sync"
NEEDS = ("rollouts", "rollouts_ref", "trained", "sync")


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
        if not sync.max_log_prob_error <= limit:
            found.add(
                f"after {where} engine and trainer log-probs differ by {sync.max_log_prob_error:.3g} on stored ones, "
                f"allowed is {limit:g} (the steps moved them by {sync.moved_log_probs:.3g})",
                it.iteration,
            )
        if sync.sequences_compared == 0:
            found.add(f"{where} compared no sequence", it.iteration)
        worst, moved = max(worst, sync.max_log_prob_error), [*moved, sync.moved_log_probs]
    figures = {"syncs": len(moved), "largest log-prob difference": worst, "allowed": limit}
    figures["least move by training"] = min(moved, default=0.0)
    if not found.words and min(moved, default=0.0) <= limit:
        return _too_small_to_tell(evidence, figures)
    good = f"{len(moved)} syncs: log-probs agree within {worst:.2g}, training moved them by {min(moved):.2g} at least"
    return found.result(NAME, good, figures)


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
