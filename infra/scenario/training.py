"""The training section of a scenario."""

from typing import Literal

from pydantic import Field, model_validator

from infra.scenario.section import Section


class Training(Section):
    """The optimizer step."""

    global_batch_size: int = Field(ge=1, description="rollouts, not samples, of one optimizer step")
    trailing: Literal["drop", "carry"] = Field(
        "drop",
        description="rollouts left over after the last full step: dropped with a reason, or trained first in the next "
        "iteration, with the advantages of their own (those of the last iteration are dropped in any case)",
    )
    max_tokens_per_gpu: int | None = Field(
        None, ge=1, description="token cap of one micro-batch; a longer sample stands alone"
    )
    micro_batch_size: int | None = Field(None, ge=1, description="samples of one micro-batch; instead of a token cap")
    loss_mean: Literal["rollout", "sample", "token", "prompt", "constant"] = Field(
        "rollout", description="what one term of the loss mean is"
    )
    constant_denominator: int = Field(
        1, ge=1, description="tokens that a rollout's sum is divided by when loss_mean is constant (Dr. GRPO)"
    )
    estimator: Literal["grpo", "gspo", "cispo", "rloo", "reinforce++", "reinforce++-baseline", "gae"] = Field(
        "grpo",
        description='advantage estimator; gae (PPO) takes a critic\'s values, one a response token, from metadata["values"] of each sample, and trains no critic',
    )
    clip_low: float = Field(0.2, ge=0, description="lower PPO clip range: ratios below 1 - clip_low are clipped")
    clip_high: float = Field(0.2, ge=0, description="upper PPO clip range")
    dual_clip: float | None = Field(None, gt=1, description="dual-clip constant c for negative advantages")
    kl_coefficient: float = Field(
        0.0, ge=0, description="weight of the KL term against the reference (the run's first weights)"
    )
    kl_estimator: Literal["k1", "k2", "k3", "low_var"] = Field(
        "k3",
        description="estimate of a token's KL to the reference: k1 the log ratio, k2 half its square, k3 unbiased and never negative, low_var k3 within bounds",
    )
    kl_reward_coefficient: float = Field(
        0.0,
        ge=0,
        description="weight of the KL to the reference that each token's reward is lowered by, in reinforce++, its baseline form and gae",
    )
    gamma: float = Field(
        1.0, gt=0, le=1, description="what one trained token later a reward is worth, in reinforce++ and gae"
    )
    gae_lambda: float = Field(
        1.0, ge=0, le=1, description="lambda of gae: 1 is the whole return less the value, 0 one step ahead"
    )
    whiten_advantages: bool | None = Field(
        None,
        description="bring the advantages of all trained tokens of an iteration to mean 0 and variance 1; null is on for reinforce++ and its baseline form, off for the others",
    )
    importance_correction: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="weigh a token's policy loss by trainer over engine probability: truncate (TIS) at most importance_high; mask leaves tokens out whose ratio is not within importance_low and importance_high",
    )
    importance_low: float = Field(0.5, ge=0, le=1, description="least ratio that importance_correction mask keeps")
    importance_high: float = Field(2.0, ge=1, description="largest ratio of importance_correction")
    entropy_coefficient: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    learning_rate: float = Field(1e-5, gt=0, description="constant learning rate of Adam")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of Adam; 0 is off")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="decay of Adam's running mean of gradients")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="decay of Adam's running mean of squared gradients")
    clip_grad: float = Field(
        1.0, ge=0, description="gradient norm clip of the optimizer; 0 is off. Checks read the unclipped gradient"
    )
    data_parallel: int = Field(1, ge=1, le=512, description="copies of the model, among which samples are shared out")
    tensor_parallel: int = Field(1, ge=1, le=64, description="ranks over which each matrix is split")
    pipeline_parallel: int = Field(1, ge=1, le=64, description="ranks over which the layers are split")
    virtual_pipeline: int = Field(
        1,
        ge=1,
        le=64,
        description="parts of the model that each pipeline rank holds, for Megatron's interleaved schedule",
    )
    microbatch_group_size: int | None = Field(
        None,
        ge=1,
        description="micro-batches that run one after the other through a part of a virtual pipeline; null is one for each pipeline rank. A rank's micro-batches come in multiples of it",
    )
    context_parallel: int = Field(
        1, ge=1, le=64, description="ranks over which each sequence is split; the token cap is for each of them"
    )
    sequence_parallel: bool = Field(
        False, description="split activations between the matrices by token over the tensor-parallel ranks: less memory"
    )
    recompute: bool = Field(
        False,
        description="compute activations again in the backward pass instead of keeping them: less memory, more time",
    )
    publish_gradients: Literal["none", "first", "all"] = Field(
        "first",
        description="unclipped gradients to publish as float32 safetensors, with the weights before each step but the run's first: of the first step whose advantages are not all 0, of every step, or none",
    )
    deadline_seconds: float = Field(
        3600, gt=0, description="longest that one iteration of training may take before it counts as hung"
    )

    @model_validator(mode="after")
    def _one_micro_batch_rule(self) -> "Training":
        if (self.max_tokens_per_gpu is None) == (self.micro_batch_size is None):
            raise ValueError("give exactly one of max_tokens_per_gpu and micro_batch_size")
        return self

    @property
    def microbatch_multiple(self) -> int:
        """What the number of a rank's micro-batches is a multiple of."""
        if self.virtual_pipeline == 1:
            return 1
        return self.microbatch_group_size or self.pipeline_parallel

    @property
    def whitens(self) -> bool:
        return self.estimator.startswith("reinforce++") if self.whiten_advantages is None else self.whiten_advantages

    @property
    def rewards_tokens(self) -> bool:
        """Whether the estimator has rewards of single tokens, into which a KL can go."""
        return self.estimator.startswith("reinforce++") or self.uses_values

    @property
    def uses_values(self) -> bool:
        """Whether the estimator needs a critic's values."""
        return self.estimator == "gae"

    @property
    def uses_reference(self) -> bool:
        """Whether the loss or the advantages need log-probs of the run's first weights."""
        return self.kl_coefficient > 0 or self.kl_reward_coefficient > 0

    @property
    def uses_engine_log_probs(self) -> bool:
        return self.importance_correction != "none"

    @property
    def world_size(self) -> int:
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel * self.context_parallel
