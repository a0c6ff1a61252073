"""Moments and rows of the chaos table, without a run."""

from pathlib import Path

import pytest

from infra.chaos.chaos import TABLE
from infra.chaos.moments import MOMENTS, Watched
from infra.chaos.targets import TARGETS
from infra.chaos_command import chosen
from infra.errors import ConfigurationError
from infra.store import ArtifactStore


def test_the_table_has_at_least_24_rows_and_names_what_is_there():
    rows = chosen([])
    assert len(rows) == len(set(rows)) >= 24
    assert {target for target, _ in rows} == set(TARGETS) and {moment for _, moment in rows} <= set(MOMENTS)
    assert sum(target == "flow process" for target, _ in rows) == len(TABLE["flow process"])


def test_rows_are_chosen_by_target_or_by_both():
    assert chosen(["SGLang@rollout 0", "full disk"]) == [
        ("SGLang", "rollout 0"),
        ("full disk", "rollout 0"),
        ("full disk", "training 0"),
    ]
    with pytest.raises(ConfigurationError, match="There is no row moon"):
        chosen(["moon"])


@pytest.fixture
def run(tmp_path: Path) -> Watched:
    (tmp_path / "spool" / "tiny-1").mkdir(parents=True)
    (tmp_path / "spool" / "tiny-1" / "lock").write_text("1")
    return Watched(home=tmp_path, store=ArtifactStore(str(tmp_path / "store")))


def test_a_stage_has_begun_when_its_first_object_is_there_and_is_over_with_its_record(run: Watched):
    moment = MOMENTS["training 0"]
    assert not moment.has_come(run)
    run.store.publish("runs/tiny-1/iterations/0000/plan-0123.json", b"{}")
    assert moment.has_come(run) and not moment.is_over(run)
    run.store.publish("runs/tiny-1/iterations/0000/training.json", b"{}")
    assert moment.is_over(run)


def test_a_rollout_has_begun_when_a_hook_was_called(run: Watched):
    spool = run.home / "spool" / "tiny-1" / "tiny-1.rollout.0.host-1.jsonl"
    spool.write_text('{"event": "drawn"}\n')
    assert not MOMENTS["rollout 0"].has_come(run)
    spool.write_text('{"event": "drawn"}\n{"event": "called"}\n')
    assert MOMENTS["rollout 0"].has_come(run) and not MOMENTS["rollout 1"].has_come(run)


def test_a_run_that_has_no_id_yet_is_at_no_moment(tmp_path: Path):
    nobody = Watched(home=tmp_path, store=ArtifactStore(str(tmp_path / "store")))
    assert not [m.name for m in MOMENTS.values() if m.has_come(nobody) or m.is_over(nobody)]
