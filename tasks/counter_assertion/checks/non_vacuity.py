"""Whether the run could have shown a fault at all: without signal, every other check passes on a broken stack too."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.records.verdict import CheckResult
from tasks.counter_assertion.advantages import SHIPPED, expected_advantages
from tasks.counter_assertion.checks.on_policy import RATIO_TOLERANCE
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, trainable

NAME = "non-vacuity"
NEEDS = ("rollouts", "normalised", "plan", "trained")
MOVED = 10 * RATIO_TOLERANCE  # what a first step may have from rounding alone does not take a later one off its policy
RAW_REWARDS = "hooks.normalize.identity"  # the baseline, if there is one, is the iteration's


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One thing that a run has to show; `unmet` says in words what is wrong where it does not."""

    met: bool
    unmet: str
    figures: dict[str, Any]


def check(evidence: Evidence) -> CheckResult:
    """INCONCLUSIVE where a condition is not met; nothing is asked of a plumbing-only scenario."""
    conditions = [c(evidence) for c in CONDITIONS]
    figures = {name: value for c in conditions for name, value in c.figures.items()}
    unmet = [c.unmet for c in conditions if not c.met]
    if evidence.scenario.plumbing_only:
        carries = f"; as declared it can not tell, because {'; '.join(unmet)}" if unmet else ""
        reason = f"not applicable: the scenario declares itself plumbing-only{carries}"
        return CheckResult(name=NAME, status="not run", reason=reason, figures=figures)
    if unmet:
        reason = "not met: " + "; ".join(unmet)
        return CheckResult(name=NAME, status="inconclusive", reason=reason, figures=figures)
    reason = "rewards, advantages, gradients, fan-outs and ratios all vary where a fault would have to show"
    return CheckResult(name=NAME, status="pass", reason=reason, figures=figures)


def mixed_groups(evidence: Evidence) -> Condition:
    """Rewards differ between the rollouts of enough prompt groups; without a group's baseline, between any rollouts."""
    rewards: dict[int, dict[int, float | None]] = {}
    for it in evidence.iterations:
        for s in trainable(it.rollouts):
            rewards.setdefault(s.group_index, {})[s.rollout_id] = s.reward
    mixed = sum(len(set(of.values())) > 1 for of in rewards.values())
    share, least = mixed / len(rewards) if rewards else 0.0, evidence.scenario.checks.min_mixed_groups
    unmet = f"rewards differ inside {mixed} of {len(rewards)} prompt groups, at least {least:.0%} are needed"
    figures = {"prompt groups": len(rewards), "mixed groups": mixed, "mixed share": share}
    if evidence.scenario.normalization.reward_post_process == RAW_REWARDS:
        different = {reward for of in rewards.values() for reward in of.values()}
        return Condition(met=len(different) > 1, unmet="all rollouts have the same reward", figures=figures)
    return Condition(met=mixed > 0 and share >= least, unmet=unmet, figures=figures)


def trained_tokens(evidence: Evidence) -> Condition:
    """Some token is trained: a loss over nothing is 0 whatever the stack does."""
    tokens = sum(s.trained_tokens for it in evidence.iterations for s in trainable(it.normalised))
    unmet = "every token is masked, so nothing is trained"
    return Condition(met=tokens > 0, unmet=unmet, figures={"trained tokens": tokens})


def advantages(evidence: Evidence) -> Condition:
    """Advantages recomputed from raw rewards are not all 0 in the step whose gradient is compared."""
    norm = evidence.scenario.normalization
    if norm.reward_post_process not in SHIPPED:
        values = [s.advantage or 0.0 for it in evidence.iterations for s in trainable(it.normalised)]
    else:
        values = [a for it in evidence.iterations for a in _advantages(evidence, it)]
    count = sum(v != 0 for v in values)
    unmet = f"all {len(values)} advantages are 0, so every gradient is"
    return Condition(met=count > 0, unmet=unmet, figures={"non-zero advantages": count})


def _advantages(evidence: Evidence, it: IterationEvidence) -> Iterator[float]:
    norm = evidence.scenario.normalization
    yield from expected_advantages(it.rollouts, norm.reward_post_process, divide_by_std=norm.divide_by_std).values()


def gradients(evidence: Evidence) -> Condition:
    """The unclipped gradient is not 0 in a step that is compared, that is, whose gradient was published.

    Others may be: a step all of whose groups have equal rewards has a gradient of 0, and has to have it.
    """
    steps = [s for it in evidence.iterations for s in it.trained.steps]
    compared = [s for s in steps if s.gradient] or steps
    moving = [s for s in compared if s.gradient_norm > 0]
    still = [(s.iteration, s.step) for s in compared if not s.gradient_norm > 0]
    unmet = f"the unclipped gradient is 0 in (iteration, step) {still}" if steps else "no optimizer step ran"
    least = min((s.gradient_norm for s in moving), default=0.0)
    figures = {"least gradient norm": least, "steps without a gradient": len(still)}
    return Condition(met=bool(moving), unmet=unmet, figures=figures)


def fan_outs(evidence: Evidence) -> Condition:
    """Every fan-out that the hook has to produce occurs, and some rollout has siblings at all."""
    sizes: dict[int, int] = {}
    for it in evidence.iterations:
        for s in it.rollouts:
            sizes[s.index] = sizes.get(s.index, 0) + 1  # by slot: what the hook gave, whatever ids it carries
    seen = sorted(set(sizes.values()))
    lacking = sorted(set(evidence.scenario.checks.expected_fan_outs) - set(seen))
    unmet = f"fan-outs {lacking} never occur (seen: {seen})" if lacking else "no rollout has more than one sample"
    return Condition(met=not lacking and max(seen, default=0) > 1, unmet=unmet, figures={"fan-outs": seen})


def differing_siblings(evidence: Evidence) -> Condition:
    """Siblings are not only copies: copies hide a wrong weight between siblings."""
    tokens: dict[int, set[tuple[int, ...]]] = {}
    for it in evidence.iterations:
        for s in it.rollouts:
            tokens.setdefault(s.index, set()).add(tuple(s.tokens))
    differing = sum(len(of) > 1 for of in tokens.values())
    figures = {"rollouts with differing siblings": differing}
    return Condition(met=differing > 0, unmet="siblings are copies of each other in every rollout", figures=figures)


def spread(evidence: Evidence) -> Condition:
    """Some rollout is split over micro-batches and, with several ranks, over ranks: denominators must survive that."""
    over_batches, over_ranks = 0, 0
    for it in evidence.iterations:
        slot = {s.key: s.index for s in it.normalised}
        for step in it.plan.steps:
            places: dict[int, set[tuple[int, int]]] = {}
            for rank, batches in enumerate(step.ranks):
                for number, batch in enumerate(batches):
                    for p in batch.samples:
                        if not p.dummy:
                            of = slot.get((p.rollout_id, p.sibling), p.rollout_id)
                            places.setdefault(of, set()).add((rank, number))
            over_batches += sum(len(of) > 1 for of in places.values())
            over_ranks += sum(len({rank for rank, _ in of}) > 1 for of in places.values())
    ranks_matter = evidence.scenario.training.data_parallel > 1
    where = "ranks" if ranks_matter and over_batches else "micro-batches"
    figures = {"rollouts over several micro-batches": over_batches, "rollouts over several ranks": over_ranks}
    met = over_batches > 0 and (over_ranks > 0 or not ranks_matter)
    return Condition(met=met, unmet=f"no rollout is split over {where}", figures=figures)


def ratios(evidence: Evidence) -> Condition:
    """A later step of an iteration is off-policy, so that clipping and old log-probs take part."""
    later = [s.max_ratio_error for it in evidence.iterations for s in it.trained.steps if s.step > 0]
    largest = max(later, default=0.0)
    unmet = f"no step after the first has ratios that leave 1 by more than {MOVED:g} ({len(later)} later steps)"
    return Condition(met=largest > MOVED, unmet=unmet, figures={"largest ratio error of later steps": largest})


CONDITIONS = (
    mixed_groups,
    trained_tokens,
    advantages,
    gradients,
    fan_outs,
    differing_siblings,
    spread,
    ratios,
)
