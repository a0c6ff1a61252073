"""What a scenario asks for that is not done here, and what a run of it can not show: said before anything starts."""

import re

from infra.errors import ConfigurationError
from infra.scenario.model import Scenario

TRAINED_ESTIMATORS = ("grpo", "gspo", "cispo", "rloo")
GROUP_RELATIVE = ("by_rollout", "by_sample", "rloo", "grpo_normalize_by_group_index")
THINKING_MODEL = re.compile(r"(^|[^a-z0-9])r1([^a-z0-9]|$)|think", re.IGNORECASE)


def refuse_unsupported(scenario: Scenario) -> None:
    """Refuse what would be ignored or fail later; all of it at once.

    Raises:
        ConfigurationError: with one line for each field.
    """
    lines = _unsupported(scenario)
    if lines:
        raise ConfigurationError(
            f"Scenario {scenario.name} asks for what is not done here:\n  " + "\n  ".join(lines),
            ids=[line.split(" ")[0] for line in lines],
        )


def _unsupported(scenario: Scenario) -> list[str]:
    training, hook = scenario.training, scenario.normalization.reward_post_process
    lines = []
    if training.estimator not in TRAINED_ESTIMATORS:
        lines.append(f"training.estimator {training.estimator}: the trainer has {', '.join(TRAINED_ESTIMATORS)}.")
    if training.estimator == "rloo" and hook != "hooks.normalize.rloo":
        lines.append(
            f"training.estimator rloo: its baseline is set by normalization.reward_post_process, which is {hook}; "
            "give hooks.normalize.rloo."
        )
    if training.sequence_parallel and training.tensor_parallel == 1:
        lines.append("training.sequence_parallel needs training.tensor_parallel of at least 2.")
    if training.trailing == "carry":
        left_over = scenario.rollouts_per_iteration % training.global_batch_size
        lines.append(
            f"training.trailing carry: no iteration takes rollouts over from the one before ({left_over} are left over "
            "here); use drop, or a training.global_batch_size that divides the "
            f"{scenario.rollouts_per_iteration} rollouts of an iteration."
        )
    return lines


def warnings_of(scenario: Scenario) -> list[str]:
    """Why a run of this scenario would show less than its reader may think; nothing where it is `plumbing_only`."""
    if scenario.plumbing_only:
        return []
    candidates = (_no_baseline, _equal_siblings, _unanswerable, _idle_ranks, _not_compared)
    return [words for candidate in candidates if (words := candidate(scenario))]


def _no_baseline(scenario: Scenario) -> str | None:
    hook = scenario.normalization.reward_post_process
    if scenario.rollout.rollouts_per_prompt > 1 or hook.rpartition(".")[2] not in GROUP_RELATIVE:
        return None
    return (
        f"rollout.rollouts_per_prompt is 1 and {hook} compares rollouts of one prompt: every advantage is 0 and "
        "nothing is learned. Give at least 2, or say plumbing_only."
    )


def _equal_siblings(scenario: Scenario) -> str | None:
    if scenario.rollout.generate != "hooks.fanout.compact_generate":
        return None
    return (
        "hooks.fanout.compact_generate copies one generation: equal siblings hide how they are weighted in the loss. "
        "hooks.subagents has hooks whose siblings differ."
    )


def _unanswerable(scenario: Scenario) -> str | None:
    if scenario.rollout.reward != "hooks.rewards.deepscaler" or THINKING_MODEL.search(scenario.model.uri):
        return None
    return (
        "hooks.rewards.deepscaler gives 0 to every answer without </think> or ###Response, and "
        f"{scenario.model.uri} is not known to write them. hooks.rewards.math or hooks.rewards.dapo ask for less."
    )


def _idle_ranks(scenario: Scenario) -> str | None:
    training = scenario.training
    if training.global_batch_size >= training.data_parallel:
        return None
    return (
        f"training.data_parallel is {training.data_parallel} and a step has {training.global_batch_size} rollouts: "
        "without enough siblings some ranks hold padding only."
    )


def _not_compared(scenario: Scenario) -> str | None:
    """What `loss-oracle`, which every green run needs, has no independent computation of."""
    training = scenario.training
    reasons = {
        "training.publish_gradients none": training.publish_gradients == "none",
        "training.estimator rloo (grpo with the same reward_post_process is the same loss)": training.estimator
        == "rloo",
        "training.entropy_coefficient": training.entropy_coefficient > 0,
        "training.kl_estimator k1": training.kl_coefficient > 0 and training.kl_estimator == "k1",
    }
    given = [name for name, holds in reasons.items() if holds]
    return f"the run can not be green: loss-oracle does not compare {', '.join(given)}." if given else None
