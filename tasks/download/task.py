"""The download stage as Prefect tasks."""

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.errors import DownloadFailed, NotInCache
from infra.progress import progress
from infra.records.sources import ModelRef, PromptsRef
from infra.run import Run
from infra.settings import settings
from infra.sources.model import fetch_model
from tasks.download.stage import publish_prompts, record_model, this_host


def download_failed(task: Any, run: Any, state: Any) -> bool:
    """Retry what a network can mend; a wrong name or a bad row is the same the next time."""
    fault = state.result(raise_on_failure=False)
    return isinstance(fault, DownloadFailed) and not isinstance(fault, NotInCache)


@task(
    task_run_name="download model {run.scenario.model.uri}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=[1, 5, 20],
    retry_condition_fn=download_failed,
)
def download_model(run: Run) -> ModelRef:
    """The scenario's model in a folder of this host, checked against what was published.

    Raises:
        ConfigurationError: no such source, repository, revision or package.
        DownloadFailed: it could not be fetched in any attempt.
    """
    with progress(f"model {run.scenario.model.uri}"):
        model = fetch_model(run.scenario.model.uri, this_host())
    record_model(run, model)
    return model


@task(
    task_run_name="download prompts {run.scenario.data.uri}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=[1, 5, 20],
    retry_condition_fn=download_failed,
)
def download_prompts(run: Run, model: ModelRef) -> PromptsRef:
    """The scenario's data as prompts in the store, rendered with the model's chat template where asked.

    Raises:
        ConfigurationError: no such source, a missing column, more bad rows than allowed, or a wrong hook of a row.
        DownloadFailed: it could not be fetched in any attempt.
    """
    with progress(f"prompts {run.scenario.data.uri}"):
        return publish_prompts(run, model, settings().hook_packages)
