import copy

import pytest

from infra.scenario.args import ScenarioArgs
from infra.scenario.load import load


def args(*overrides: str) -> ScenarioArgs:
    return ScenarioArgs(load("tiny", list(overrides)), "/models/tiny")


def test_slimes_names_are_answered_from_the_scenario():
    scenario = load("tiny")
    view = args()
    assert view.rollout_batch_size == scenario.rollout.prompts
    assert view.n_samples_per_prompt == scenario.rollout.rollouts_per_prompt
    assert view.global_batch_size == scenario.training.global_batch_size
    assert view.rollout_max_response_len == scenario.rollout.max_response_tokens
    assert view.rollout_temperature == scenario.rollout.temperature
    assert view.custom_generate_function_path == scenario.rollout.generate
    assert view.seed == view.rollout_seed == scenario.seed
    assert view.hf_checkpoint == "/models/tiny" and view.kl_coef == 0.0 and view.partial_rollout is False


def test_filters_and_the_log_hook_go_by_slimes_names():
    assert args().dynamic_sampling_filter_path is None and args().custom_rollout_log_function_path is None
    view = args("rollout.dynamic_filter=mine.keep", "rollout.sample_filter=mine.drop", "rollout.log=mine.log")
    assert (view.dynamic_sampling_filter_path, view.rollout_sample_filter_path) == ("mine.keep", "mine.drop")
    assert view.custom_rollout_log_function_path == "mine.log"


def test_the_kl_term_of_the_loss_is_slimes_kl_loss_coef():
    view = args("training.kl_coefficient=0.1")
    assert view.kl_loss_coef == 0.1 and view.use_kl_loss and view.kl_coef == 0.0


def test_the_kl_in_the_reward_is_slimes_kl_coef():
    view = args("training.kl_reward_coefficient=0.1", "training.estimator=reinforce++")
    assert view.kl_coef == 0.1 and view.kl_loss_coef == 0.0 and not view.use_kl_loss


@pytest.mark.parametrize(
    ("override", "name", "default", "answer"),
    [
        ("gamma=0.9", "gamma", 1.0, 0.9),
        ("gae_lambda=0.8", "lambd", 1.0, 0.8),
        ("estimator=reinforce++", "normalize_advantages", False, True),
        ("whiten_advantages=true", "normalize_advantages", False, True),
        ("loss_mean=token", "calculate_per_token_loss", False, True),
        ("loss_mean=sample", "calculate_per_token_loss", False, False),
        ("importance_correction=truncate", "use_tis", False, True),
        ("importance_correction=mask", "use_tis", False, False),
        ("importance_high=3", "tis_clip", 2.0, 3.0),
        ("virtual_pipeline=2", "virtual_pipeline_model_parallel_size", None, 2),
    ],
)
def test_the_objective_and_the_layout_go_by_slimes_names(override: str, name: str, default: object, answer: object):
    assert getattr(args(), name) == default and getattr(args(f"training.{override}"), name) == answer


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(AttributeError, match=r"'rollout_temperatur'.*Did you mean 'rollout_temperature'"):
        _ = args().rollout_temperatur
    assert not hasattr(args(), "sglang_router_ip") and getattr(args(), "unheard_of", 3) == 3


def test_nothing_can_be_changed_through_it():
    view = args("rollout.hook_options={words: [a, b], depth: {max: 3}}")
    with pytest.raises(AttributeError, match="read-only"):
        view.rollout_temperature = 2
    with pytest.raises(AttributeError, match="read-only"):
        del view.seed
    view.hook_options["words"].append("c")
    view.hook_options["depth"]["max"] = 4
    assert view.hook_options == {"words": ["a", "b"], "depth": {"max": 3}}


def test_a_copy_is_the_same_view():
    view = args()
    assert copy.deepcopy(view) is view and "rollout_temperature" in dir(view)
