import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.errors import ConfigurationError
from infra.sources.data import read_data
from infra.sources.host import Host
from infra.sources.rows import Rows

CHAIN_SUM = "reasoning-gym://chain_sum?size=8&seed=1&min_terms=2&max_terms=2&min_digits=1&max_digits=1"


@pytest.fixture
def read(tmp_path):
    def read(uri: str) -> Rows:
        return read_data(uri, Host(cache=tmp_path / "cache"))

    return read


def test_jsonl_rows_keep_their_number_in_a_slice(read, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": str(i), "label": "x"}) + "\n\n" for i in range(5)))
    rows = read(f"{file}@[1:3]").rows
    assert [(row.number, row.where.rpartition(" ")[2]) for row in rows] == [(1, "3"), (2, "5")]
    assert len(read(str(file)).rows) == 5


@pytest.mark.parametrize(
    ("line", "fault"),
    [(b"{broken", "not JSON"), (b"[1]", "not a JSON object but list"), (b'{"prompt": "\xff"}', "not JSON")],
)
def test_an_unreadable_line_is_a_row_with_a_fault(read, tmp_path, line, fault):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n' + line)
    good, bad = read(str(file)).rows
    assert good.values == {"prompt": "a"}
    assert bad.values is None
    assert bad.fault.startswith(fault)
    assert bad.where == f"{file} line 2"


def test_parquet_rows(read, tmp_path):
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": ["a", "b", "c"], "label": [1, 2, 3]}), file)
    assert [row.values for row in read(f"{file}@[2:]").rows] == [{"prompt": "c", "label": 3}]


def test_the_revision_of_a_file_is_its_content(read, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}')
    before = read(str(file)).revision
    file.write_text('{"prompt": "b"}')
    assert read(str(file)).revision != before


def test_files_that_are_missing_or_of_another_kind(read, tmp_path):
    with pytest.raises(ConfigurationError, match="There is no data file"):
        read(str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigurationError, match=r"neither \.jsonl nor \.parquet"):
        read(str(tmp_path / "rows.pkl"))
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(ConfigurationError, match="is not a Parquet file"):
        read(str(tmp_path / "rows.parquet"))


def test_reasoning_gym_gives_equal_rows_for_equal_options(read):
    rows = read(CHAIN_SUM).rows
    assert rows == read(CHAIN_SUM).rows
    assert rows != read(CHAIN_SUM.replace("seed=1", "seed=2")).rows
    assert [row.number for row in read(f"{CHAIN_SUM}@[2:4]").rows] == [2, 3]
    first = rows[0].values
    assert first and json.loads(json.dumps(first["metadata"])) == first["metadata"]
    assert str(eval_sum(first["metadata"]["expression"])) == first["label"]


def eval_sum(expression: str) -> int:
    first, sign, second = expression.split()
    return int(first) + int(second) * (1 if sign == "+" else -1)


def test_reasoning_gym_refuses_what_it_does_not_know(read):
    with pytest.raises(ConfigurationError, match="Did you mean 'chain_sum'"):
        read("reasoning-gym://chain_sums")
    with pytest.raises(ConfigurationError, match="Did you mean 'min_terms'"):
        read("reasoning-gym://chain_sum?min_term=2")
    with pytest.raises(ConfigurationError, match="reasoning-gym refuses it"):
        read("reasoning-gym://chain_sum?min_terms=3&max_terms=2")
