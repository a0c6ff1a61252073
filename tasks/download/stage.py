"""The download stage: the model into this host's cache, the prompts into the store."""

import pyarrow as pa

from infra.errors import ConfigurationError
from infra.records.rollouts import write_table
from infra.records.sources import PROMPTS_SCHEMA, ModelRef, PromptsRef
from infra.run import Run
from infra.settings import settings
from infra.sources.data import read_data
from infra.sources.host import Host
from tasks.download.prompts import Render, make_prompts
from tasks.rollout.draw import refuse_too_few_rows

STAGE = "download-prompts"


def this_host() -> Host:
    """Cache folder and hub as the settings say."""
    now = settings()
    return Host(cache=now.cache_dir, endpoint=now.hf_endpoint, offline=now.hf_offline)


def publish_prompts(run: Run, model: ModelRef) -> PromptsRef:
    """Read the data source and publish its prompts; a run that has them keeps them.

    Raises:
        ConfigurationError: the source, a column or a row is wrong, or there is no chat template to apply.
        ContractViolation: fewer prompts than the run asks for, where another epoch is forbidden.
        DownloadFailed: the source could not be fetched.
    """
    if record := run.finished(STAGE, 0):
        return PromptsRef.from_dict(record)
    data = run.scenario.data
    source = read_data(data.uri, this_host())
    prompts = make_prompts(data, source.rows, chat_renderer(model) if data.apply_chat_template else None)
    if not prompts.rows:
        raise ConfigurationError(f"{data.uri} has no rows.", ids=[data.uri])
    refuse_too_few_rows(run.scenario, len(prompts.rows))
    table = pa.Table.from_pylist(prompts.rows, schema=PROMPTS_SCHEMA)
    ref = PromptsRef(
        uri=data.uri,
        revision=source.revision,
        table=write_table(run.store, run.key("prompts.parquet"), table),
        rows=table.num_rows,
        skipped_rows=prompts.skipped,
    )
    run.finish(STAGE, 0, ref.to_dict())
    return ref


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
