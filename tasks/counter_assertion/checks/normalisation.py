"""Advantages recomputed from raw rewards in float64, by the rule of the scenario's hook."""

import math

from infra.records.verdict import CheckResult
from infra.scenario.model import Scenario
from tasks.counter_assertion.advantages import BY_SAMPLE, SHIPPED, expected_advantages
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, trainable
from tasks.counter_assertion.findings import Findings

NAME = "normalisation"
NEEDS = ("rollouts", "normalised")
TOLERANCE = 1e-6  # absolute, per unit of advantage: hooks may compute in float32, whose rounding is 6e-8


def check(evidence: Evidence) -> CheckResult:
    """Compare stored advantages with recomputed ones; for hooks of one's own, only finiteness and the groups' mean."""
    scenario, found, worst, samples = evidence.scenario, Findings(), 0.0, 0
    hook = scenario.normalization.reward_post_process
    for it in evidence.iterations:
        samples += sum(s.iteration == it.iteration for s in it.normalised)  # others were counted in their own
        _finite(it, found)
        _rewards_unchanged(it, found)
        error = _compare(it, scenario, found) if hook in SHIPPED else _mean_zero(it, found)
        worst = max(worst, error)
    figures = {"hook": hook, "samples": samples, "largest error": worst, "recomputed": hook in SHIPPED}
    if hook in SHIPPED:
        good = f"the advantages of {samples} samples equal {hook} recomputed in float64"
    else:
        good = f"{hook} is not a shipped hook: only that {samples} advantages are finite and group means 0 was checked"
    return found.result(NAME, good, figures)


def _finite(it: IterationEvidence, found: Findings) -> None:
    for s in trainable(it.normalised):
        if s.advantage is None or not math.isfinite(s.advantage):
            found.add(f"rollout {s.rollout_id} sibling {s.sibling} has advantage {s.advantage}", s.rollout_id)


def _rewards_unchanged(it: IterationEvidence, found: Findings) -> None:
    raw = {s.key: s.reward for s in it.rollouts}
    for s in it.normalised:
        if s.key in raw and s.reward != raw[s.key]:
            found.add(f"rollout {s.rollout_id} had reward {raw[s.key]}, after normalisation {s.reward}", s.rollout_id)


def _compare(it: IterationEvidence, scenario: Scenario, found: Findings) -> float:
    hook, worst = scenario.normalization.reward_post_process, 0.0
    expected = expected_advantages(it.rollouts, hook, divide_by_std=scenario.normalization.divide_by_std)
    rule = "one vote a sample" if hook in BY_SAMPLE else "one vote a rollout"
    for s in it.normalised:
        if s.key not in expected or s.advantage is None:
            continue
        error = abs(s.advantage - expected[s.key])
        worst = max(worst, error)
        if not error <= TOLERANCE * max(1.0, abs(expected[s.key])):
            found.add(
                f"rollout {s.rollout_id} of group {s.group_index} has advantage {s.advantage:.6g}, {rule} gives "
                f"{expected[s.key]:.6g}",
                s.rollout_id,
            )
    return worst


def _mean_zero(it: IterationEvidence, found: Findings) -> float:
    """Largest distance of a group's mean from 0, over rollouts or over samples, whichever the hook seems to use."""
    worst = 0.0
    groups: dict[int, list[tuple[int, float]]] = {}
    for s in trainable(it.normalised):
        if s.advantage is not None and s.iteration == it.iteration:  # of a carried rollout the group is not whole here
            groups.setdefault(s.group_index, []).append((s.rollout_id, s.advantage))
    for group, members in groups.items():
        by_rollout, by_sample = list(dict(members).values()), [a for _, a in members]
        mean = min((sum(v) / len(v) for v in (by_rollout, by_sample)), key=abs)
        worst = max(worst, abs(mean))
        if not abs(mean) <= TOLERANCE * max(1.0, *(abs(a) for a in by_sample)):
            found.add(f"the advantages of prompt group {group} have mean {mean:.6g}, not 0", group)
    return worst
