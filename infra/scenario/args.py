"""The scenario as hooks see it: read-only, under slime's attribute names."""

import copy
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.scenario.model import Scenario


def _from_scenario(section: str, field: str) -> Callable[[Scenario], Any]:
    def answer(scenario: Scenario) -> Any:
        given = getattr(scenario, section)
        return None if given is None else getattr(given, field)  # a section may be left out: evaluation

    return answer


def _several(parts: int) -> int | None:
    return parts if parts > 1 else None  # Megatron's None is a pipeline that is not interleaved


_SAME = {
    "rollout": {
        "rollout_batch_size": "prompts",
        "n_samples_per_prompt": "rollouts_per_prompt",
        "num_rollout": "iterations",
        "rollout_max_response_len": "max_response_tokens",
        "rollout_temperature": "temperature",
        "rollout_top_p": "top_p",
        "rollout_stop": "stop",
        "custom_generate_function_path": "generate",
        "custom_rm_path": "reward",
        "reward_key": "reward_key",
        "siblings_scored_apart": "siblings_scored_apart",
        "dynamic_sampling_filter_path": "dynamic_filter",
        "rollout_sample_filter_path": "sample_filter",
        "custom_rollout_log_function_path": "log",
        "sglang_server_concurrency": "concurrency",
    },
    "normalization": {
        "custom_reward_post_process_path": "reward_post_process",
        "grpo_std_normalization": "divide_by_std",
    },
    "training": {
        "global_batch_size": "global_batch_size",
        "advantage_estimator": "estimator",
        "eps_clip": "clip_low",
        "eps_clip_high": "clip_high",
        "eps_clip_c": "dual_clip",
        "kl_loss_coef": "kl_coefficient",
        "kl_loss_type": "kl_estimator",
        "kl_coef": "kl_reward_coefficient",
        "gamma": "gamma",
        "lambd": "gae_lambda",
        "normalize_advantages": "whitens",
        "tis_clip": "importance_high",
        "entropy_coef": "entropy_coefficient",
        "lr": "learning_rate",
        "weight_decay": "weight_decay",
        "adam_beta1": "adam_beta1",
        "adam_beta2": "adam_beta2",
        "clip_grad": "clip_grad",
        "max_tokens_per_gpu": "max_tokens_per_gpu",
        "micro_batch_size": "micro_batch_size",
        "tensor_model_parallel_size": "tensor_parallel",
        "pipeline_model_parallel_size": "pipeline_parallel",
        "context_parallel_size": "context_parallel",
        "sequence_parallel": "sequence_parallel",
    },
    "data": {
        "prompt_data": "uri",
        "input_key": "prompt_key",
        "label_key": "label_key",
        "apply_chat_template": "apply_chat_template",
    },
    "evaluation": {
        "eval_interval": "every",
        "n_samples_per_eval_prompt": "rollouts_per_prompt",
        "eval_temperature": "temperature",
        "eval_max_response_len": "max_response_tokens",
    },
    "engine": {"sglang_mem_fraction_static": "memory_fraction"},
}
ANSWERS: dict[str, Callable[[Scenario], Any]] = {
    **{name: _from_scenario(section, field) for section, names in _SAME.items() for name, field in names.items()},
    "seed": lambda s: s.seed,
    "rollout_seed": lambda s: s.seed,
    "use_kl_loss": lambda s: s.training.kl_coefficient > 0,
    "use_tis": lambda s: s.training.importance_correction == "truncate",
    "calculate_per_token_loss": lambda s: s.training.loss_mean == "token",
    "virtual_pipeline_model_parallel_size": lambda s: _several(s.training.virtual_pipeline),
    "use_dynamic_batch_size": lambda s: s.training.max_tokens_per_gpu is not None,
    "partial_rollout": lambda s: s.rollout.partial != "none",
    "mask_offpolicy_in_partial_rollout": lambda s: s.rollout.partial == "mask_offpolicy",
    "rewards_normalization": lambda s: True,
    "rollout_top_k": lambda s: -1,
    "rollout_skip_special_tokens": lambda s: True,
    "rm_url": lambda s: s.rollout.hook_options.get("rm_url"),
}


class ScenarioArgs:
    """Answers slime's attribute names from a scenario; `hook_options` are the scenario's own values for hooks.

    Args:
        scenario: the run's scenario.
        model_path: local folder of the model, answered as `hf_checkpoint`.
    Raises:
        AttributeError: an unknown name (with the nearest one), or an attempt to set or delete anything.

    Example: ScenarioArgs(scenario, path).rollout_temperature
    """

    def __init__(self, scenario: Scenario, model_path: Path | str):
        values = {name: answer(scenario) for name, answer in ANSWERS.items()}
        values |= {"hf_checkpoint": str(model_path), "hook_options": scenario.rollout.hook_options}
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols of copy, pickle and inspect ask for such names
            raise AttributeError(name)
        values: dict[str, Any] = self._values
        if name not in values:
            close = difflib.get_close_matches(name, values, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise AttributeError(f"The scenario answers no attribute {name!r}.{hint} Own values go in hook_options.")
        return copy.deepcopy(values[name])  # a hook that changes what it gets changes nothing else

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"args is read-only: {name!r} can not be set.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"args is read-only: {name!r} can not be deleted.")

    def __dir__(self) -> list[str]:
        return sorted(self._values)

    def __reduce__(self) -> Any:
        raise TypeError("args is a view of a running scenario and is not pickled")

    def __deepcopy__(self, memo: Any) -> "ScenarioArgs":
        return self
