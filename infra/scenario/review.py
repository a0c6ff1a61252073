"""What a scenario asks for that is not done here, and what a run of it can not show: said before anything starts."""

import re

from infra.errors import ConfigurationError
from infra.scenario.model import Scenario

BASELINE_HOOKS = (
    "hooks.normalize.by_rollout",
    "hooks.normalize.by_sample",
    "hooks.fanout.grpo_normalize_by_group_index",
)
DICT_REWARDS = {"hooks.rewards.dapo": ("score", "acc")}  # and the entries of their answers that are numbers
MIXED_REWARDS = "hooks.filters.mixed_rewards"
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
    training = scenario.training
    reward = unkeyed_reward(scenario.rollout.reward, scenario.rollout.reward_key)
    lines = [words for words in (_estimator(scenario), reward) if words]
    if training.kl_reward_coefficient and not training.rewards_tokens:
        lines.append(
            f"training.kl_reward_coefficient above 0: {training.estimator} has one advantage a sample and takes no KL "
            "into its rewards; give training.kl_coefficient, which is a term of the loss, or estimator reinforce++."
        )
    if training.gamma != 1 and training.estimator not in ("reinforce++", "gae"):
        lines.append(
            f"training.gamma {training.gamma:g}: {training.estimator} discounts nothing; only reinforce++ and gae do."
        )
    if training.gae_lambda != 1 and not training.uses_values:
        lines.append(f"training.gae_lambda {training.gae_lambda:g} does nothing: {training.estimator} is not gae.")
    if scenario.rollout.dynamic_filter == MIXED_REWARDS and scenario.rollout.rollouts_per_prompt == 1:
        lines.append(
            f"rollout.dynamic_filter {MIXED_REWARDS} keeps prompt groups whose rewards differ: with "
            "rollout.rollouts_per_prompt 1 it would drop every group, and nothing would be trained."
        )
    if training.sequence_parallel and training.tensor_parallel == 1:
        lines.append("training.sequence_parallel needs training.tensor_parallel of at least 2.")
    return [*lines, *_virtual_pipeline(scenario)]


def unkeyed_reward(hook: str, key: str | None) -> str | None:
    """Why a shipped reward hook would give no number under this `rollout.reward_key`; None where it does."""
    numbers = DICT_REWARDS.get(hook)
    if numbers is None or key in numbers:
        return None
    return f"rollout.reward_key {key or 'null'}: {hook} answers a dict; give {' or '.join(numbers)}."


def _virtual_pipeline(scenario: Scenario) -> list[str]:
    training = scenario.training
    group, stages = training.microbatch_group_size, training.pipeline_parallel
    if training.virtual_pipeline == 1:
        alone = "training.microbatch_group_size does nothing without training.virtual_pipeline of at least 2."
        return [alone] if group is not None else []
    if stages == 1:
        return ["training.virtual_pipeline needs training.pipeline_parallel of at least 2."]
    if group is not None and group < stages:
        return [
            f"training.microbatch_group_size {group}: Megatron's interleaved schedule takes groups of at least "
            f"training.pipeline_parallel, which is {stages}."
        ]
    return []


def _estimator(scenario: Scenario) -> str | None:
    """Why the estimator can not be had with this scenario's reward post-process; None where it can."""
    estimator, norm = scenario.training.estimator, scenario.normalization
    hook, where = norm.reward_post_process, "normalization.reward_post_process"
    shipped = hook.startswith(("hooks.normalize.", "hooks.fanout."))
    if estimator == "gae" and shipped and hook != "hooks.normalize.identity":
        return (
            f"training.estimator gae takes raw rewards, its baseline is a critic's values, and {where} is {hook}; give "
            "hooks.normalize.identity."
        )
    if estimator == "rloo" and hook != "hooks.normalize.rloo":
        return f"training.estimator rloo: its baseline is set by {where}, which is {hook}; give hooks.normalize.rloo."
    if estimator == "reinforce++" and shipped and hook != "hooks.normalize.identity":
        return (
            "training.estimator reinforce++ takes raw rewards, its baseline is the mean over the iteration, and "
            f"{where} is {hook}; give hooks.normalize.identity, or estimator reinforce++-baseline."
        )
    if estimator == "reinforce++-baseline" and shipped and (hook not in BASELINE_HOOKS or norm.divide_by_std):
        return (
            f"training.estimator reinforce++-baseline takes rewards less their group's mean: give {where} "
            f"{BASELINE_HOOKS[0]} with normalization.divide_by_std false (here {hook}, "
            f"{str(norm.divide_by_std).lower()})."
        )
    return None


def warnings_of(scenario: Scenario) -> list[str]:
    """Why a run of this scenario would show less than its reader may think.

    One that is `plumbing_only` says itself that it carries no signal; not that its rewards can be nothing but 0.
    """
    candidates = (
        _no_baseline,
        _equal_siblings,
        _single_samples,
        _first_steps_only,
        _unanswerable,
        _idle_ranks,
        _not_compared,
        _not_reproducible,
        _no_room,
    )
    if scenario.plumbing_only:
        candidates = (_unanswerable,)
    return [words for candidate in candidates if (words := candidate(scenario))]


def _no_baseline(scenario: Scenario) -> str | None:
    hook = scenario.normalization.reward_post_process
    if scenario.rollout.rollouts_per_prompt > 1 or hook.rpartition(".")[2] not in GROUP_RELATIVE:
        return None
    training = scenario.training
    besides = training.kl_coefficient or training.entropy_coefficient
    then = "only the KL and entropy terms train" if besides else "so is the gradient, nothing is learned"
    return (
        f"rollout.rollouts_per_prompt is 1 and {hook} compares rollouts of one prompt: every advantage is 0 and "
        f"{then}. Give at least 2, or say plumbing_only."
    )


def _equal_siblings(scenario: Scenario) -> str | None:
    if scenario.rollout.generate != "hooks.fanout.compact_generate":
        return None
    return (
        "hooks.fanout.compact_generate copies one generation: equal siblings hide how they are weighted in the loss. "
        "hooks.subagents has hooks whose siblings differ."
    )


def _single_samples(scenario: Scenario) -> str | None:
    if scenario.rollout.generate != "hooks.stock.generate":
        return None
    return (
        "hooks.stock.generate gives one sample a rollout: the run can not be green, no rollout fans out. "
        "hooks.subagents has hooks that do."
    )


def _first_steps_only(scenario: Scenario) -> str | None:
    if scenario.rollouts_per_iteration >= 2 * scenario.training.global_batch_size:
        return None
    return (
        f"an iteration has {scenario.rollouts_per_iteration} rollouts and a step takes "
        f"{scenario.training.global_batch_size}: the run can not be green, no second step has ratios that leave 1."
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
    """Without a gradient `loss-oracle`, which every green run needs, has nothing to compare."""
    if scenario.training.publish_gradients != "none":
        return None
    return "training.publish_gradients is none: the run can not be green, loss-oracle compares a published gradient."


def _not_reproducible(scenario: Scenario) -> str | None:
    if not scenario.training.uses_engine_log_probs or scenario.rollout.concurrency == 1:
        return None
    return (
        "training.importance_correction weighs the loss by the engine's log-probs, whose last bits depend on which "
        f"requests it batches: with rollout.concurrency {scenario.rollout.concurrency} equal runs may end in weights "
        "that differ in their last bits. With concurrency 1, and a hook that makes one call at a time, they are equal."
    )


def _no_room(scenario: Scenario) -> str | None:
    """A dynamic filter leaves fewer rollouts than a step takes as soon as it drops one prompt group."""
    rollout, size = scenario.rollout, scenario.training.global_batch_size
    if rollout.dynamic_filter is None or scenario.rollouts_per_iteration - rollout.rollouts_per_prompt >= size:
        return None
    return (
        f"training.global_batch_size {size} takes all {scenario.rollouts_per_iteration} rollouts of an iteration: if "
        f"{rollout.dynamic_filter} drops one prompt group no full step is left and the run ends. Lower it, or give "
        "more rollout.prompts."
    )
