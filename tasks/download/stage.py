"""The download stage: the model into this host's cache, the prompts into the store."""

import json
from dataclasses import replace

import pyarrow as pa

from infra.errors import ConfigurationError
from infra.hook_loading import HOOK_PACKAGES, load_prompt_hooks
from infra.records.rollouts import write_table
from infra.records.sources import PROMPTS_SCHEMA, ModelRef, PromptsRef
from infra.run import Run
from infra.scenario.model import Data, Evaluation
from infra.scenario.review import unkeyed_reward
from infra.sources.data import read_data
from infra.sources.host import this_host
from tasks.download.prompts import Prompts, Render, make_prompts
from tasks.rollout.draw import refuse_too_few_rows

MODEL, STAGE = "download-model", "download-prompts"


def record_model(run: Run, model: ModelRef) -> None:
    """Record which model a run has. A run that is gone on with has to get the same one.

    Raises:
        ConfigurationError: the source gives another model than when the run was started.
    """
    record = {"uri": model.uri, "revision": model.revision, "digest": model.digest, "parameters": model.parameters}
    before = run.finished(MODEL, 0)
    if before is not None and before["digest"] != model.digest:
        raise ConfigurationError(
            f"Run {run.run_id} has model {model.uri} of revision {before['revision']}, the source gives revision "
            f"{model.revision} now.",
            next_step="Name the revision in model.uri, or start a new run.",
            ids=[run.run_id, before["revision"], model.revision],
        )
    run.finish(MODEL, 0, record)


def publish_prompts(run: Run, model: ModelRef, hook_packages: tuple[str, ...] = HOOK_PACKAGES) -> PromptsRef:
    """Read the data source and publish its prompts; a run that has them keeps them.

    Args:
        hook_packages: packages that this deployment lets hooks come from, also those that prompts name.
    Raises:
        ConfigurationError: the source, a column, a row or a hook that it names is wrong, or there is no chat template
            to apply.
        ContractViolation: fewer prompts than the run asks for, where another epoch is forbidden.
        DownloadFailed: the source could not be fetched.
    """
    if record := run.finished(STAGE, 0):
        return PromptsRef.from_dict(record)
    evaluation = run.scenario.evaluation
    ref = _published(run, model, run.scenario.data, "prompts.parquet", hook_packages)
    refuse_too_few_rows(run.scenario, ref.rows)
    if evaluation is not None:
        apart = _published(run, model, evaluation.data, "evaluation-prompts.parquet", hook_packages)
        _refuse_too_few_to_evaluate(evaluation, apart.rows)
        ref = replace(ref, evaluation=apart)
    run.finish(STAGE, 0, ref.to_dict())
    return ref


def _published(run: Run, model: ModelRef, data: Data, key: str, hook_packages: tuple[str, ...]) -> PromptsRef:
    source = read_data(data.uri, this_host())
    prompts = make_prompts(data, source.rows, chat_renderer(model) if data.apply_chat_template else None)
    if not prompts.rows:
        raise ConfigurationError(f"{data.uri} has no rows.", ids=[data.uri])
    _refuse_wrong_hooks(run, prompts, hook_packages)
    table = pa.Table.from_pylist(prompts.rows, schema=PROMPTS_SCHEMA)
    return PromptsRef(
        uri=data.uri,
        revision=source.revision,
        table=write_table(run.store, run.key(key), table),
        rows=table.num_rows,
        skipped_rows=prompts.skipped,
    )


def _refuse_wrong_hooks(run: Run, prompts: Prompts, hook_packages: tuple[str, ...]) -> None:
    """Those that rows name in their own metadata, as the scenario's are refused when a run is opened."""
    for hook in load_prompt_hooks((json.loads(row["metadata"]) for row in prompts.rows), hook_packages):
        if words := unkeyed_reward(hook.path, run.scenario.rollout.reward_key):
            raise ConfigurationError(words, ids=[hook.path])


def _refuse_too_few_to_evaluate(evaluation: Evaluation, rows: int) -> None:
    if evaluation.prompts is not None and rows < evaluation.prompts:
        raise ConfigurationError(
            f"{evaluation.data.uri} has {rows} prompts, evaluation.prompts asks for {evaluation.prompts}.",
            next_step="Leave evaluation.prompts out to take all.",
            ids=[rows, evaluation.prompts],
        )


def chat_renderer(model: ModelRef) -> Render:
    """Chat messages to text, by the model's own template, ending where the assistant begins to speak.

    Raises:
        ConfigurationError: the model has no chat template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True)
    if not tokenizer.chat_template:
        raise ConfigurationError(
            f"{model.uri} has no chat template.", next_step="Set data.apply_chat_template to false.", ids=[model.uri]
        )
    return lambda messages: tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
