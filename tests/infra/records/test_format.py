"""The committed schemas are those of the code, and what is not of the format is named."""

import json

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator

from infra.records.format import SCHEMAS, NotOfTheFormat, documents, lines, record, table
from infra.records.replay import Replay
from infra.records.rollouts import LOG_PROBS_SCHEMA

REF = {"key": "a", "sha256": "0", "size": 1}
REPLAY = {"iteration": 0, "rollouts": REF, "plan": REF, "step_digests": ["a", "b"]}


def test_the_committed_schemas_are_those_of_the_code():
    made = json.loads(json.dumps(documents()))
    assert sorted(made) == sorted(p.name for p in SCHEMAS.iterdir())
    for name, document in made.items():
        assert json.loads((SCHEMAS / name).read_text()) == document, f"{name}: run python -m infra.records.format"


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.schema.json")), ids=lambda p: p.name)
def test_each_is_a_json_schema(path):
    Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_a_record_may_hold_more_than_the_format_knows():
    read = record("replay", {**REPLAY, "host": "somewhere"}, "replay.json")
    assert isinstance(read, Replay) and read.step_digests == ("a", "b") and read.plan.size == 1
    assert Replay.from_dict(read.to_dict()) == read


def test_what_lacks_in_a_record_is_named():
    with pytest.raises(NotOfTheFormat, match=r"replay\.json is not of record format 1: plan: Field required"):
        record("replay", {k: v for k, v in REPLAY.items() if k != "plan"}, "replay.json")


def test_what_lacks_in_a_table_is_named():
    rows = pa.table({"rollout_id": pa.array([1], pa.int32()), "log_probs": [[0.5]], "more": ["x"]})
    with pytest.raises(NotOfTheFormat, match="column sibling is not there"):
        table("log-probs", rows, "x.parquet")
    whole = rows.append_column("sibling", pa.array([0], pa.int64()))
    assert table("log-probs", whole, "x.parquet").schema == LOG_PROBS_SCHEMA
    empty = rows.append_column("sibling", pa.array([None], pa.int64()))
    with pytest.raises(NotOfTheFormat, match="column sibling has nulls"):
        table("log-probs", empty, "x.parquet")
    words = rows.append_column("sibling", pa.array(["first"]))
    with pytest.raises(NotOfTheFormat, match="first"):
        table("log-probs", words, "x.parquet")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "line 0 is no JSON object"),
        ("[]", "line 0 is no JSON object"),
        ('{"event": "called", "line": 0, "run": "a", "index": 1}', "line 0 (called) lacks group_index, attempt, hook"),
        ('{"event": "of another kind", "line": 0}', "line 0 (of another kind) lacks run"),
    ],
)
def test_what_lacks_in_a_ledger_line_is_named(text, words):
    with pytest.raises(NotOfTheFormat) as found:
        lines(text.encode(), "segment")
    assert words in str(found.value)


def test_the_schema_of_a_ledger_line_asks_for_the_same():
    schema = Draft202012Validator(json.loads((SCHEMAS / "ledger-line.schema.json").read_text()))
    line = {"run": "a", "stage": "rollout", "iteration": 0, "line": 0, "event": "normalised"}
    assert not schema.is_valid(line) and schema.is_valid({**line, "rollout_id": 3})
