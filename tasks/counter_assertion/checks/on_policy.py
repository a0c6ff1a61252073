"""The first step of an iteration starts from the weights that generated: ratio 1, and both log-probs agree."""

from collections import Counter

import numpy as np

from infra.records.verdict import CheckResult
from tasks.counter_assertion.bounds import bounds_of
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, trainable
from tasks.counter_assertion.findings import Findings

NAME = "on-policy"
NEEDS = ("normalised", "rollouts_ref", "engine_log_probs", "trainer_log_probs", "trained")
RATIO_TOLERANCE = 1e-6  # the old log-probs are recomputed by the same code: the ratio is 1 but for one rounding


def check(evidence: Evidence) -> CheckResult:
    """Ratio, clip fraction and KL of every first step; trainer against engine log-probs of the trained tokens."""
    found, errors = Findings(), []
    bounds = bounds_of(evidence.scenario.checks, "float32")
    for it in evidence.iterations:
        bounds = bounds_of(evidence.scenario.checks, it.trained.dtype)
        _first_step(it, found)  # rollouts carried over too: old log-probs are recomputed in every iteration
        errors.append(_differences(it, bounds.log_prob, found))
    everything = np.concatenate(errors) if errors else np.zeros(0)
    if not everything.size:
        return CheckResult(name=NAME, status="inconclusive", reason="no token of the current weights to compare")
    figures = {
        "tokens": int(everything.size),
        "largest log-prob difference": float(everything.max()),
        "mean log-prob difference": float(everything.mean()),
        "allowed": bounds.log_prob,
        "allowed mean": bounds.mean_log_prob,
    }
    if not everything.mean() <= bounds.mean_log_prob:
        found.add(
            f"engine and trainer log-probs differ by {everything.mean():.3g} in the mean, allowed is "
            f"{bounds.mean_log_prob:g}"
        )
    good = f"engine and trainer agree on {everything.size} tokens within {everything.max():.2g}, first ratios are 1"
    return found.result(NAME, good, figures)


def _first_step(it: IterationEvidence, found: Findings) -> None:
    if not it.trained.steps:
        found.add(f"iteration {it.iteration} has no optimizer step", it.iteration)
        return
    first, where = it.trained.steps[0], f"the first step of iteration {it.iteration}"
    if not first.max_ratio_error <= RATIO_TOLERANCE:
        found.add(f"{where} has ratios up to {first.max_ratio_error:.3g} away from 1", it.iteration)
    if first.clip_fraction != 0:
        found.add(f"{where} clips {first.clip_fraction:.3g} of its tokens, expected none", it.iteration)
    if not abs(first.approx_kl) <= RATIO_TOLERANCE:
        found.add(f"{where} has an approximate KL of {first.approx_kl:.3g}, expected 0", it.iteration)


def _differences(it: IterationEvidence, limit: float, found: Findings) -> np.ndarray:
    """[tokens] |engine - trainer| over trained tokens that the current weights generated."""
    parts, times = [], Counter(s.key for s in it.normalised)
    for s in trainable(it.normalised):
        engine, trainer = it.engine_log_probs.get(s.key), it.trainer_log_probs.get(s.key)
        # A hook may keep no engine log-probs, a rollout that no step takes has none of the trainer; samples that
        # share their ids can not be told apart, which `identity` is red about.
        if engine is None or trainer is None or times[s.key] > 1:
            continue
        if s.weight_version != it.rollouts_ref.weight_version:
            continue
        if not len(engine) == len(trainer) == s.response_length:
            found.add(f"rollout {s.rollout_id} sibling {s.sibling} has log-probs of another length", s.rollout_id)
            continue
        difference = np.abs(engine - trainer)[np.asarray(s.loss_mask, dtype=bool)]
        if difference.size and not difference.max() <= limit:
            found.add(
                f"rollout {s.rollout_id} sibling {s.sibling} of iteration {it.iteration}: engine and trainer "
                f"log-probs differ by {difference.max():.3g}, allowed is {limit:g}",
                s.rollout_id,
            )
        parts.append(difference)
    return np.concatenate(parts) if parts else np.zeros(0)
