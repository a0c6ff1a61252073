import json

import pytest

from infra.errors import ConfigurationError
from infra.scenario.model import Data
from infra.sources.data import read_data
from infra.sources.host import Host
from infra.sources.rows import Row
from tasks.download.prompts import BadRows, make_prompts
from tests.cases_of import case


def data(**fields) -> Data:
    return Data(uri="rows.jsonl", **fields)


def rows(*values: dict) -> list[Row]:
    return [Row(number=i, where=f"rows.jsonl line {i + 1}", values=v) for i, v in enumerate(values)]


GOOD = {"prompt": "1+1=", "label": 2, "metadata": {"b": 1, "a": [2]}}


def test_a_row_becomes_text_label_and_metadata():
    (prompt,) = make_prompts(data(), rows(GOOD), None).rows
    assert prompt == {"prompt_id": "0", "prompt": "1+1=", "label": "2", "metadata": '{"a": [2], "b": 1}'}


def test_bad_rows_are_refused_with_file_line_and_reason(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(case("budget-7")["input"]["jsonl"]))
    read = read_data(str(file), Host(cache=tmp_path)).rows
    with pytest.raises(BadRows) as refused:
        make_prompts(data(), read, None)
    assert "2 of 3 rows are bad" in str(refused.value)
    assert f"{file} line 2: not JSON" in str(refused.value)
    assert f"{file} line 3: no 'label'" in str(refused.value)
    assert refused.value.exit_code == 2
    allowed = make_prompts(data(allowed_bad_rows=0.7), read, None)
    assert [row["prompt_id"] for row in allowed.rows] == ["0"]
    assert len(allowed.skipped) == 2


def test_at_most_twenty_bad_rows_are_shown_and_all_are_counted():
    with pytest.raises(BadRows, match="and 5 more") as refused:
        make_prompts(data(), rows(GOOD, *({"prompt": "x"} for _ in range(25))), None)
    assert len(refused.value.ids) == 25


def test_a_column_that_no_row_has_is_named_with_those_there_are():
    with pytest.raises(ConfigurationError, match=r"no column 'label'.*it has answer, prompt"):
        make_prompts(data(), rows({"prompt": "a", "answer": "b"}), None)
    with pytest.raises(ConfigurationError, match="Did you mean 'prompt'"):
        make_prompts(data(prompt_key="prompts"), rows(GOOD), None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"label": None}, "no 'label'"),
        ({"label": ["2"]}, "the label is neither text nor a number but list"),
        ({"label": True}, "the label is neither text nor a number but bool"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [{"role": "user", "content": "hi"}]}, "chat messages need data.apply_chat_template"),
        ({"metadata": "{"}, "metadata is not JSON"),
        ({"metadata": [1]}, "metadata is not a JSON object but list"),
        ({"metadata": {"x": float("nan")}}, "metadata is not JSON"),
    ],
)
def test_what_a_row_can_be_bad_for(fields, reason):
    with pytest.raises(BadRows, match=reason):
        make_prompts(data(), rows({**GOOD, **fields}), None)


def test_a_template_takes_the_prompt_and_metadata():
    template = "1 + 1 = 2\n{expression} ="
    made = make_prompts(data(prompt_template=template), rows({**GOOD, "metadata": {"expression": "3 - 1"}}), None)
    assert made.rows[0]["prompt"] == "1 + 1 = 2\n3 - 1 ="
    with pytest.raises(BadRows, match="asks for 'expression', the row has a, b, prompt"):
        make_prompts(data(prompt_template=template), rows(GOOD), None)


def test_text_is_a_user_turn_and_messages_are_rendered_as_they_are():
    messages = [{"role": "system", "content": "add"}, {"role": "user", "content": "1+1"}]
    made = make_prompts(data(), rows(GOOD, {**GOOD, "prompt": messages}), json.dumps)
    assert [json.loads(row["prompt"]) for row in made.rows] == [[{"role": "user", "content": "1+1="}], messages]
    with pytest.raises(BadRows, match="neither text nor a list of messages"):
        make_prompts(data(), rows({**GOOD, "prompt": [{"content": "1+1"}]}), json.dumps)
