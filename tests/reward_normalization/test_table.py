import json

from infra.records.rollouts import rollouts_table
from tasks.reward_normalization.table import group_rows, ledger_rows
from tests.reward_normalization.rows import row

TABLE = rollouts_table(
    [
        row(0, 0, reward=1.0, advantage=0.5),
        row(1, 0, 0, advantage=-0.5),
        row(1, 0, 1, advantage=-0.5, remove_sample=True),
        row(2, 1, reward=None, advantage=0.0),
    ]
)


def test_one_row_a_group_that_prefect_can_store():
    rows = group_rows(TABLE)
    assert [(r["group_index"], r["rollouts"], r["mean"], r["fan-out"]) for r in rows] == [
        (0, 2, 0.5, "[1, 2]"),
        (1, 1, "nan", "[1]"),
    ]
    json.dumps(rows, allow_nan=False)


def test_one_ledger_row_a_rollout_names_removed_siblings():
    rows = list(ledger_rows(TABLE))
    assert [(r["rollout_id"], r["removed"], r["advantages"]) for r in rows] == [
        (0, [], [0.5]),
        (1, [1], [-0.5, -0.5]),
        (2, [], [0.0]),
    ]
