"""Stored answers graded once more against the labels of the SOURCE, and known answers through the same grader."""

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hooks.sample import Sample, Status
from infra.hook_loading import Hook, load_hook
from infra.records.verdict import CheckResult
from infra.scenario.args import ScenarioArgs
from tasks.counter_assertion.canaries import CANARIES
from tasks.counter_assertion.evidence import Evidence, IterationEvidence, StoredSample
from tasks.counter_assertion.findings import Findings

NAME = "rewards"
NEEDS = ("rollouts", "ledger", "prompts")
SERVICES = ("hooks.rewards.remote",)  # not asked again: the answer is the service's, and may cost something
TOLERANCE = 1e-9


def check(evidence: Evidence) -> CheckResult:
    """Labels by prompt id, every reward again, right and wrong canaries, and the share of truncated answers."""
    found, path = Findings(), evidence.scenario.rollout.reward
    for it in evidence.iterations:
        _labels(it, evidence.prompts or {}, found)
    regraded = asyncio.run(_grade_all_again(evidence, found))
    samples = [s for it in evidence.iterations for s in it.rollouts]
    truncated = sum(s.status == "truncated" for s in samples)
    figures: dict[str, Any] = {"hook": path, "rollouts graded again": regraded, "canaries": len(CANARIES.get(path, ()))}
    figures["truncated share"] = truncated / len(samples) if samples else 0.0
    again = f"{regraded} rollouts graded again got the same reward" if regraded else "labels are the source's"
    return found.result(NAME, f"{again}, by {path} against the source's labels", figures)


def _labels(it: IterationEvidence, source: Mapping[str, str], found: Findings) -> None:
    for s in it.rollouts:
        if s.prompt_id not in source:
            found.add(f"prompt id {s.prompt_id} of rollout {s.rollout_id} is not in the source", s.rollout_id)
        elif s.label is not None and s.label != source[s.prompt_id]:
            found.add(
                f"rollout {s.rollout_id} was graded against label {s.label!r:.60}, the source's label of prompt "
                f"{s.prompt_id} is {source[s.prompt_id]!r:.60}",
                s.rollout_id,
            )


async def _grade_all_again(evidence: Evidence, found: Findings) -> int:
    """By the scenario's hook, and of prompts that name a reward hook of their own by that one."""
    default = evidence.scenario.rollout.reward
    paths = [default, *sorted(set(evidence.rewards_of_prompts.values()) - {default})]
    hooks = [load_hook(path, "reward", evidence.hook_packages) for path in paths if path not in SERVICES]
    return sum([await _grade_again(evidence, hook, found) for hook in hooks])


async def _grade_again(evidence: Evidence, hook: Hook, found: Findings) -> int:
    args = ScenarioArgs(evidence.scenario, evidence.model.path if evidence.model else "")
    regraded = 0
    for it in evidence.iterations:
        for unit in _units(it, _graded_by(hook.path, it, evidence), evidence, hook):
            answers = await _ask(hook, args, [_as_sample(s, evidence.prompts or {}) for s in unit], unit, found)
            for s, answer in zip(unit, answers, strict=True):
                regraded += 1
                value = _number(answer, args.reward_key)
                if s.reward is not None and (value is None or not abs(value - s.reward) <= TOLERANCE):
                    found.add(
                        f"rollout {s.rollout_id} has reward {s.reward}, graded again {answer!r:.60}", s.rollout_id
                    )
    for response, label, metadata, right in CANARIES.get(hook.path, ()):
        await _canary(hook, args, Sample(index=-1, response=response, label=label, metadata=metadata), right, found)
    return regraded


def _graded_by(path: str, it: IterationEvidence, evidence: Evidence) -> list[StoredSample]:
    """The samples that a reward hook has to answer for; what a generate hook rewarded itself nobody was asked for."""
    given = {e["index"] for e in it.events("generated") if e.get("rewarded")}
    hook_of, default = evidence.rewards_of_prompts, evidence.scenario.rollout.reward
    return [s for s in it.rollouts if hook_of.get(s.prompt_id, default) == path and s.index not in given]


def _units(
    it: IterationEvidence, samples: list[StoredSample], evidence: Evidence, hook: Hook
) -> list[list[StoredSample]]:
    """What the hook is asked for at once: the last sibling of a rollout, each sibling, or a whole prompt group."""
    groups: dict[tuple[int, ...], list[StoredSample]] = {}
    for s in samples:
        groups.setdefault((s.group_index,) if hook.takes_samples else (s.rollout_id, s.index), []).append(s)
    if hook.takes_samples:
        return list(groups.values())
    if evidence.scenario.rollout.siblings_scored_apart:
        return [[s] for s in samples]
    answers = [max(siblings, key=lambda s: s.sibling) for siblings in groups.values()]
    # Where the last sibling, which was graded, is not stored, `ledger` is red and there is nothing to grade again.
    last: dict[int, int] = {}
    for e in it.events("generated"):
        last[e["index"]] = max(last.get(e["index"], 0), e["sibling"])
    return [[s] for s in answers if s.sibling >= last.get(s.index, 0)]


def _as_sample(s: StoredSample, labels: Mapping[str, str]) -> Sample:
    return Sample(
        group_index=s.group_index,
        index=s.index,
        rollout_id=s.rollout_id,
        prompt=s.prompt,
        tokens=s.tokens,
        response=s.response,
        response_length=s.response_length,
        label=labels.get(s.prompt_id),
        loss_mask=s.loss_mask,
        status=Status(s.status),
        metadata=json.loads(s.metadata),
    )


async def _ask(
    hook: Hook, args: Any, samples: list[Sample], unit: Sequence[StoredSample], found: Findings
) -> Sequence[Any]:
    try:
        answer = hook.function(args, samples if hook.takes_samples else samples[0])
        answer = await answer if inspect.isawaitable(answer) else answer
    except Exception as cause:  # a hook is user code: whatever it raises is what this check reports, with the ids
        rollouts = sorted({s.rollout_id for s in unit})
        found.add(f"{hook.path} raises for rollouts {rollouts}: {type(cause).__name__}: {cause}", *rollouts)
        return [None] * len(unit)
    return answer if hook.takes_samples else [answer]


async def _canary(hook: Hook, args: Any, sample: Sample, right: bool, found: Findings) -> None:
    (answer,) = await _ask(hook, args, [sample], (), found)
    value = _number(answer, args.reward_key)
    if value is None or (value > 0) is not right:
        kind = "right" if right else "wrong"
        found.add(f"{hook.path} gives {answer!r:.60} to the {kind} answer {sample.response!r} of {sample.label!r}")


def _number(answer: Any, key: str | None) -> float | None:
    if isinstance(answer, dict):
        answer = answer.get(key or "score")
    return None if answer is None else float(answer)
