import json
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from infra.errors import ConfigurationError
from infra.sources.embedded import model as embedded
from infra.sources.embedded import tokenizer
from infra.sources.embedded.arithmetic import problems
from infra.sources.host import Host
from infra.sources.model import fetch_model


@pytest.fixture(scope="module")
def loaded():
    return AutoTokenizer.from_pretrained(embedded.HERE / "tiny", local_files_only=True)


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_any_text_survives_the_tokenizer(loaded, text):
    composed = loaded.backend_tokenizer.normalizer.normalize_str(text)
    assert loaded.decode(loaded.encode(text)) == composed


def test_characters_are_tokens_and_a_newline_ends_a_text(loaded):
    ids = loaded.encode("13+4=17\n")
    assert len(ids) == 8
    assert ids[-1] == loaded.eos_token_id == tokenizer.END_ID
    assert loaded.decode(ids, skip_special_tokens=True) == "13+4=17"


def test_every_id_that_the_model_can_sample_has_a_token(loaded):
    config = json.loads((embedded.HERE / "tiny" / "config.json").read_text())
    assert len(loaded) == config["vocab_size"] == tokenizer.VOCABULARY
    assert config["vocab_size"] % 8 == 0
    assert None not in loaded.convert_ids_to_tokens(list(range(len(loaded))))


def test_the_shipped_files_are_those_noted(tmp_path):
    model = fetch_model("embedded://tiny", Host(cache=tmp_path))
    noted = json.loads((embedded.HERE / "tiny.digest.json").read_text())
    assert (model.digest, model.parameters) == (noted["digest"], noted["parameters"])
    assert not list(tmp_path.iterdir())


def test_changed_weights_are_refused(tmp_path, monkeypatch):
    shutil.copytree(embedded.HERE, tmp_path / "embedded")
    monkeypatch.setattr(embedded, "HERE", tmp_path / "embedded")
    config = tmp_path / "embedded" / "tiny" / "config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(ConfigurationError, match="Restore its files"):
        embedded.folder("tiny")


def test_an_unknown_embedded_model_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match="Did you mean 'tiny'"):
        embedded.folder("tinny")


def worked(parts: list[str]) -> str:
    answer = ""
    for part in parts:
        first, second = map(int, re.fullmatch(r"(\d+)\+(\d)=", part.replace("{answer}", answer)).groups())  # type: ignore[union-attr]
        assert first < 30
        answer = str(first + second)
    return answer


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31))
def test_working_the_parts_in_turn_gives_the_label(seed):
    rows = list(problems(60, seed))
    assert [worked(row["metadata"]["parts"]) for row in rows] == [row["label"] for row in rows]
    assert all(row["prompt"] == row["metadata"]["parts"][0] for row in rows)


@pytest.mark.parametrize("begin", range(6))
def test_any_three_rows_in_turn_have_every_fan_out(begin):
    fan_outs = [len(row["metadata"]["parts"]) for row in problems(9, 0)]
    assert sorted(fan_outs[begin : begin + 3]) == [1, 2, 3]


def test_problems_depend_on_the_seed_only():
    assert list(problems(30, 1)) == list(problems(30, 1))
    assert list(problems(30, 1)) != list(problems(30, 2))
    assert list(problems(10, 1)) == list(problems(30, 1))[:10]
