"""What is refused and what is warned about before anything starts."""

import pytest

from infra.errors import ConfigurationError
from infra.scenario.load import load, names
from infra.scenario.review import refuse_unsupported, warnings_of
from tests.cases_of import case

UNANSWERABLE = "gives 0 to every answer without </think> or ###Response"


@pytest.mark.parametrize("name", names())
def test_the_catalog_is_supported_and_says_nothing_but_of_rewards_that_are_always_0(name: str):
    refuse_unsupported(load(name))
    said = warnings_of(load(name))
    assert len(said) == (name == "compact-short") and all(UNANSWERABLE in words for words in said)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["training.estimator=gae"], "training.estimator gae takes raw rewards, its baseline is a critic's values"),
        (["training.gae_lambda=0.9"], "training.gae_lambda 0.9 does nothing: grpo is not gae"),
        (["training.estimator=reinforce++"], "reinforce++ takes raw rewards"),
        (
            ["training.estimator=reinforce++-baseline"],
            "with normalization.divide_by_std false (here hooks.normalize.by",
        ),
        (["training.kl_reward_coefficient=0.1"], "grpo has one advantage a sample and takes no KL into its rewards"),
        (["training.gamma=0.9"], "training.gamma 0.9: grpo discounts nothing"),
        (["training.estimator=rloo"], "give hooks.normalize.rloo"),
        (
            ["rollout.reward=hooks.rewards.dapo"],
            "rollout.reward_key null: hooks.rewards.dapo answers a dict; give score",
        ),
        (
            ["rollout.reward=hooks.rewards.dapo", "rollout.reward_key=pred"],
            "rollout.reward_key pred: hooks.rewards.dapo",
        ),
        (["training.sequence_parallel=true"], "needs training.tensor_parallel of at least 2"),
        (["training.virtual_pipeline=2"], "needs training.pipeline_parallel of at least 2"),
        (["training.microbatch_group_size=2"], "does nothing without training.virtual_pipeline"),
        (
            ["training.virtual_pipeline=2", "training.pipeline_parallel=4", "training.microbatch_group_size=3"],
            "groups of at least training.pipeline_parallel, which is 4",
        ),
    ],
)
def test_what_would_do_nothing_or_fail_later_is_refused(overrides: list[str], words: str):
    with pytest.raises(ConfigurationError) as refused:
        refuse_unsupported(load("tiny", overrides))
    assert words in str(refused.value) and refused.value.exit_code == 2


@pytest.mark.parametrize(
    "overrides",
    [
        ["rollout.reward=hooks.rewards.dapo", "rollout.reward_key=score"],
        ["training.estimator=rloo", "normalization.reward_post_process=hooks.normalize.rloo"],
        ["training.estimator=reinforce++", "normalization.reward_post_process=hooks.normalize.identity"],
        ["training.estimator=reinforce++", "normalization.reward_post_process=mine.shaped", "training.gamma=0.9"],
        [
            "training.estimator=gae",
            "normalization.reward_post_process=hooks.normalize.identity",
            "training.gamma=0.99",
            "training.gae_lambda=0.95",
            "training.kl_reward_coefficient=0.1",
        ],
        ["training.estimator=reinforce++-baseline", "normalization.divide_by_std=false"],
        ["training.estimator=gspo", "training.kl_coefficient=0.1", "training.entropy_coefficient=0.01"],
        ["training.sequence_parallel=true", "training.tensor_parallel=2"],
        ["training.trailing=carry", "training.global_batch_size=6"],
    ],
)
def test_what_the_trainer_computes_is_not(overrides: list[str]):
    refuse_unsupported(load("tiny", overrides))


def test_all_refusals_are_said_at_once():
    with pytest.raises(ConfigurationError, match=r"(?s)estimator gae.*sequence_parallel needs"):
        refuse_unsupported(load("tiny", ["training.estimator=gae", "training.sequence_parallel=true"]))


def test_a_filter_for_mixed_rewards_on_one_rollout_a_prompt_is_refused():
    known = case("norm-5")
    assert "clear refusal at configuration" in known["expect"]["ends"]
    alone = [f"rollout.rollouts_per_prompt={known['input']['n_samples_per_prompt']}", "rollout.prompts=16"]
    with pytest.raises(ConfigurationError, match=r"rollout.dynamic_filter .* would drop every group"):
        refuse_unsupported(load("tiny", [*alone, "rollout.dynamic_filter=hooks.filters.mixed_rewards"]))


def test_an_iteration_without_a_full_step_is_refused_with_both_numbers():
    few, run = case("sched-6")["input"], case("sched-7")["input"]
    with pytest.raises(ConfigurationError, match="3 rollouts an iteration, 4 a step"):
        load(
            "tiny",
            [
                f"rollout.prompts={few['rollouts']}",
                "rollout.rollouts_per_prompt=1",
                f"training.global_batch_size={few['global_batch_size']}",
            ],
        )
    with pytest.raises(ConfigurationError, match=case("sched-7")["expect"]["error"].split(": ")[1]):
        load(
            "tiny",
            [
                f"rollout.iterations={run['num_iterations']}",
                f"rollout.prompts={run['rollout_batch_size']}",
                f"rollout.rollouts_per_prompt={run['n_samples_per_prompt']}",
                f"training.global_batch_size={run['global_batch_size']}",
            ],
        )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rollout.rollouts_per_prompt=1", "rollout.prompts=16"], "every advantage is 0 and so is the gradient"),
        (
            ["rollout.rollouts_per_prompt=1", "rollout.prompts=16", "training.kl_coefficient=0.1"],
            "every advantage is 0 and only the KL and entropy terms train",
        ),
        (["rollout.generate=hooks.stock.generate"], "no rollout fans out"),
        (["training.global_batch_size=16"], "no second step has ratios that leave 1"),
        (["rollout.generate=hooks.fanout.compact_generate"], "copies one generation"),
        (["rollout.reward=hooks.rewards.deepscaler"], "embedded://tiny is not known to write them"),
        (["training.data_parallel=16"], "some ranks hold padding only"),
        (
            ["rollout.dynamic_filter=hooks.filters.mixed_rewards", "training.global_batch_size=16"],
            "if hooks.filters.mixed_rewards drops one prompt group no full step is left",
        ),
        (["training.publish_gradients=none"], "the run can not be green"),
        (["training.importance_correction=mask"], "With concurrency 1"),
    ],
)
def test_a_configuration_that_can_not_show_much_is_warned_about(overrides: list[str], words: str):
    said = warnings_of(load("tiny", overrides))
    assert any(words in warning for warning in said)
    plumbing = warnings_of(load("tiny", [*overrides, "plumbing_only=true"]))
    assert plumbing == [warning for warning in said if UNANSWERABLE in warning]


@pytest.mark.parametrize("model", ["hf://deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "hf://x/Qwen3-Thinking", "/m/r1"])
def test_models_that_think_may_be_graded_by_deepscaler(model: str):
    assert warnings_of(load("tiny", [f"model={model}", "rollout.reward=hooks.rewards.deepscaler"])) == []


def test_one_rollout_a_prompt_without_a_group_baseline_is_fine():
    alone = ["rollout.rollouts_per_prompt=1", "rollout.prompts=16"]
    assert warnings_of(load("tiny", [*alone, "normalization.reward_post_process=hooks.normalize.identity"])) == []
