"""Reward normalisation as a Prefect task, against a real server of Prefect."""

from pathlib import Path
from typing import Any

import pytest

from infra.ledger import read_segment
from infra.records.rollouts import RolloutsRef, log_probs_table, read_table, rollouts_table, write_table
from infra.run import Run
from infra.scenario.load import load
from tests.reward_normalization.rows import row


def stored_rollouts(run: Run) -> RolloutsRef:
    rows = [row(0, 0, reward=1.0), row(1, 0, 0), row(1, 0, 1), row(2, 1, reward=5.0)]
    return RolloutsRef(
        iteration=0,
        table=write_table(run.store, run.key("iterations", 0, "rollouts-{digest}.parquet"), rollouts_table(rows)),
        log_probs=write_table(run.store, run.key("iterations", 0, "log-probs-{digest}.parquet"), log_probs_table([])),
        ledger=(),
        samples=4,
        rollouts=3,
        generated_tokens=12,
        weight_version="0",
    )


@pytest.mark.prefect
def test_advantages_are_published_once_with_a_table_and_a_ledger(prefect: str, tmp_path: Path):
    from prefect import flow
    from prefect.artifacts import Artifact

    from tasks.reward_normalization.task import normalize_rewards

    scenario = load("tiny", ["normalization.divide_by_std=false"])
    run = Run(run_id="normal-1", scenario=scenario, store_uri=str(tmp_path / "store"), spool=tmp_path / "spool")
    rollouts = stored_rollouts(run)

    @flow
    def twice() -> tuple[RolloutsRef, RolloutsRef]:
        return normalize_rewards(run, rollouts), normalize_rewards(run, rollouts)

    first, second = twice()
    assert first == second == RolloutsRef.from_dict(run.finished("reward_normalization", 0) or {})
    table = read_table(run.store, first.table)
    assert table["advantage"].to_pylist() == [0.5, -0.5, -0.5, 0.0]
    assert table.drop(["advantage"]).equals(read_table(run.store, rollouts.table).drop(["advantage"]))
    events = read_segment(run.store, run.run_id, first.ledger[-1])
    assert [(e["event"], e["rollout_id"]) for e in events] == [("normalised", 0), ("normalised", 1), ("normalised", 2)]
    artifact: Any = Artifact.get("normalisation-normal-1-0000")
    assert '"mean": 0.5' in str(artifact.data) and "nan" in str(artifact.data)
