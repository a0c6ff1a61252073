"""What the contract's refusals can not see in one rollout alone: dependence on timing, log-probs of other tokens."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.hook_check.engine import SmallModel
from infra.scenario.model import Scenario

Rows = Sequence[Mapping[str, Any]]
LogProbs = Mapping[tuple[int, int], list[float]]
LOG_PROB_TOLERANCE = 1e-3


def disagreement(first: Rows, again: Rows, reordered: Rows) -> Iterator[str]:
    """Why two passes over the same prompts, seeds and weights did not give the same samples."""
    if where := _first_difference(first, again):
        yield (
            f"The same calls in the same order gave other results: {where}. The hook draws chance of its own or keeps "
            "state from rollout to rollout; take chance from sample.index, keep nothing in the module."
        )
    elif where := _first_difference(first, reordered):
        yield (
            f"The results depend on the order in which engine calls end: {where}. Give calls that run side by side "
            "names of their own (call='solve/2'), and combine their results in a fixed order."
        )


def _first_difference(one: Rows, other: Rows) -> str | None:
    """Where two tables differ first. A failed attempt before is no difference: retries start afresh."""
    if (counts := (len(one), len(other)))[0] != counts[1]:
        return f"{counts[0]} samples, then {counts[1]}"
    for a, b in zip(one, other, strict=True):
        names = [name for name in a if name != "attempt" and a[name] != b[name]]
        if names:
            return f"rollout index {a['index']}, sibling {a['sibling']} differs in {', '.join(names)}"
    return None


def wrong_log_probs(rows: Rows, log_probs: LogProbs, model: SmallModel, temperature: float) -> Iterator[str]:
    """Samples whose trained tokens do not have the log-probs that the model gives them in their place."""
    for row in rows:
        where = f"rollout index {row['index']}, sibling {row['sibling']}"
        if strange := [t for t in row["tokens"] if t >= model.vocabulary]:
            yield f"Token {strange[0]} of {where} is not among the model's {model.vocabulary}."
            continue
        kept = log_probs.get((row["rollout_id"], row["sibling"]))
        if kept is None or not any(row["loss_mask"]):
            continue
        computed = model.log_probs(row["tokens"], row["response_length"], temperature)
        errors = [abs(a - b) if m else 0.0 for a, b, m in zip(kept, computed, row["loss_mask"], strict=True)]
        if max(errors) > LOG_PROB_TOLERANCE:
            yield (
                f"The log-probs of {where} are not those of its tokens: response token {errors.index(max(errors))} is "
                f"off by {max(errors):.3g}. Tokens that the engine did not generate in this place, or at another "
                "temperature, take mask 0 and log-prob 0: append_response_tokens(…, trainable=False)."
            )


def no_signal(mixed_groups: float, scenario: Scenario) -> Iterator[str]:
    """A note where no prompt group has rewards that differ."""
    if mixed_groups == 0 and scenario.rollout.rollouts_per_prompt > 1:
        yield (
            "0 % of the prompt groups are mixed: all rollouts of a prompt got the same reward, so every advantage is 0 "
            "and a run of this would be INCONCLUSIVE. More prompts or rollouts here (--set rollout.prompts=16) tell "
            "whether that is chance; else prompts are too easy or too hard, or the answer is not where "
            f"{scenario.rollout.reward} looks for it."
        )


def notes_on(rows: Rows, log_probs: LogProbs, events: Rows, scenario: Scenario) -> Iterator[str]:
    """What is allowed and worth knowing before a run."""
    siblings: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        siblings.setdefault(row["index"], []).append(tuple(row["tokens"]))
    equal = [index for index, tokens in siblings.items() if len(tokens) > 1 and len(set(tokens)) == 1]
    if equal:
        yield f"the siblings of {len(equal)} rollouts are copies: they hide how siblings are weighted in the loss"
    fan_outs = sorted({len(tokens) for tokens in siblings.values()})
    if tuple(fan_outs) != tuple(sorted(scenario.checks.expected_fan_outs)):
        yield f"its fan-outs are {fan_outs}: a run needs --set 'checks.expected_fan_outs={fan_outs}'"
    without = [e["index"] for e in events if e["event"] == "generated" and "calls" in e and not e["calls"]]
    if without:
        yield f"{len(without)} rollouts asked the engine for nothing"
    bare = sum((row["rollout_id"], row["sibling"]) not in log_probs for row in rows)
    if bare:
        yield f"{bare} samples keep no log-probs of the engine: nothing compares engine and trainer on them"
    masked = sum(not any(row["loss_mask"]) for row in rows)
    if masked:
        yield f"{masked} samples have no trained token"
    for reason, times in sorted(Counter(e["reason"] for e in events if e["event"] == "attempt_failed").items()):
        yield f"{times} attempts failed and were tried again: {reason}"
