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


def rows_naming(folder: Path, *metadata: dict) -> str:
    """Overrides for a source of one row for each metadata."""
    rows = [{"prompt": f"{k}+1=", "label": str(k + 1), "metadata": own} for k, own in enumerate(metadata)]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"uri: {file}"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            {"custom_rm_path": "hooks.rewards.matth"},
            r"reward hook hooks.rewards.matth: .*Did you mean hooks.rewards.math",
        ),
        ({"generate_function_path": "hooks.stok.generate"}, r"there is no module hooks.stok. Did you mean hooks.stock"),
        (
            {"generate_function_path": "hooks.rewards.math"},
            r"generate hook hooks.rewards.math.* can not be called with",
        ),
        ({"custom_rm_path": "os.system"}, r"reward hook os.system lies outside the packages .*FANLINE_HOOK_PACKAGES"),
        ({"custom_rm_path": 5}, r"reward hook 5 lies outside the packages"),
    ],
)
@pytest.mark.parametrize("data", ["data", "evaluation.data"])
def test_a_wrong_hook_of_a_prompt_is_refused_before_anything_is_started(tmp_path, model, data, names, words):
    rows = rows_naming(tmp_path, {}, {"custom_rm_path": None, "generate_function_path": None}, names)
    with pytest.raises(ConfigurationError, match=words):
        publish_prompts(run_of(tmp_path, f"{data}={{{rows}}}"), model)


def test_prompts_may_name_hooks_of_the_packages_that_this_deployment_allows(tmp_path, model):
    own = {"custom_rm_path": "tests.counter_assertion.own_hooks.other_way_round"}
    run = run_of(tmp_path, f"data={{{rows_naming(tmp_path, own, {})}}}")
    with pytest.raises(ConfigurationError, match=r"lies outside the packages that this deployment allows .hooks."):
        publish_prompts(run, model)
    assert publish_prompts(run, model, ("hooks", "tests")).rows == 2


def test_a_reward_of_a_prompt_that_answers_a_dict_needs_a_key(tmp_path, model):
    data = f"data={{{rows_naming(tmp_path, {'custom_rm_path': 'hooks.rewards.dapo'})}}}"
    with pytest.raises(ConfigurationError, match=r"rollout.reward_key null: hooks.rewards.dapo answers a dict"):
        publish_prompts(run_of(tmp_path, data), model)
    assert publish_prompts(run_of(tmp_path, data, "rollout.reward_key=score"), model).rows == 1
