import json
from pathlib import Path

import pytest
from prefect.states import Failed

from infra.errors import ConfigurationError, ContractViolation, DownloadFailed, NotInCache
from infra.records.rollouts import read_table
from infra.records.sources import PROMPTS_SCHEMA
from infra.run import Run
from infra.scenario.load import load
from infra.sources.host import Host
from infra.sources.model import fetch_model
from tasks.download.stage import publish_prompts
from tasks.download.task import download_failed, download_model, download_prompts


def run_of(folder: Path, *overrides: str) -> Run:
    scenario = load("tiny", list(overrides))
    return Run(run_id="t", scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fetch_model("embedded://tiny", Host(cache=tmp_path_factory.mktemp("cache")))


def test_prompts_are_published_once_and_equal_to_the_byte(tmp_path, model):
    first, other = run_of(tmp_path / "a"), run_of(tmp_path / "b")
    prompts = publish_prompts(first, model)
    assert publish_prompts(first, model) == prompts
    assert publish_prompts(other, model).table.sha256 == prompts.table.sha256
    table = read_table(first.store, prompts.table)
    assert table.schema.equals(PROMPTS_SCHEMA)
    assert table.num_rows == prompts.rows == 64
    assert json.loads(table["metadata"][1].as_py())["parts"][0] == table["prompt"][1].as_py()


def test_prompt_ids_are_row_numbers_of_the_source_also_in_a_slice(tmp_path, model):
    run = run_of(tmp_path, "data=embedded://arithmetic?rows=9@[3:5]")
    assert read_table(run.store, publish_prompts(run, model).table)["prompt_id"].to_pylist() == ["3", "4"]


def test_a_model_without_chat_template_can_not_render(tmp_path, model):
    run = run_of(tmp_path, "data={uri: embedded://arithmetic, apply_chat_template: true}")
    with pytest.raises(ConfigurationError, match="embedded://tiny has no chat template"):
        publish_prompts(run, model)


def test_no_rows_are_refused(tmp_path, model):
    with pytest.raises(ConfigurationError, match="has no rows"):
        publish_prompts(run_of(tmp_path, "data=embedded://arithmetic?rows=9@[9:]"), model)


@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (DownloadFailed("cut"), True),
        (NotInCache("offline"), False),
        (ConfigurationError("no such revision"), False),
        (ValueError("a fault of ours"), False),
    ],
)
def test_only_what_a_network_can_mend_is_tried_again(fault, again):
    for task in (download_model, download_prompts):
        assert task.retries == 3
        assert task.retry_condition_fn is download_failed
    assert download_failed(download_model, None, Failed(data=fault)) is again


def test_too_few_rows_are_refused_before_anything_is_started(tmp_path, model):
    run = run_of(tmp_path, "data=embedded://arithmetic?rows=7", "data.allow_more_epochs=false")
    with pytest.raises(ContractViolation, match=r"7 prompts, the run asks for 8"):
        publish_prompts(run, model)


def test_the_prompts_of_evaluations_are_published_apart(tmp_path, model):
    run = run_of(tmp_path, "evaluation.data=embedded://arithmetic?rows=7", "evaluation.prompts=7")
    prompts = publish_prompts(run, model)
    assert prompts.evaluation and (prompts.rows, prompts.evaluation.rows) == (64, 7)
    assert publish_prompts(run, model) == prompts
    with pytest.raises(ConfigurationError, match=r"has 7 prompts, evaluation.prompts asks for 8"):
        publish_prompts(
            run_of(tmp_path / "b", "evaluation.data=embedded://arithmetic?rows=7", "evaluation.prompts=8"), model
        )
