import json
from pathlib import Path

import pytest

from infra.errors import LedgerUnavailable, StoreUnavailable
from infra.ledger import LedgerWriter, read_segment
from infra.store import ArtifactStore


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


def test_events_come_back_in_order_and_the_spool_is_empty(store: ArtifactStore, tmp_path: Path):
    with LedgerWriter("run-1", "rollout", 0, tmp_path / "spool") as ledger:
        ledger.write("called", index=3)
        ledger.write("generated", index=3, rollout_id=3, sibling=0)
        ref = ledger.seal(store)
    assert [(e["event"], e["line"]) for e in read_segment(store, "run-1", ref)] == [("called", 0), ("generated", 1)]
    assert list((tmp_path / "spool").iterdir()) == []


def test_every_event_is_on_disk_before_the_stage_ends(tmp_path: Path):
    with LedgerWriter("run-1", "rollout", 0, tmp_path) as ledger:
        ledger.write("called", index=3)
        assert json.loads(ledger.path.read_text())["index"] == 3


def test_a_ledger_of_another_run_is_refused(store: ArtifactStore, tmp_path: Path):
    with LedgerWriter("run-1", "rollout", 0, tmp_path) as ledger:
        ledger.write("called", index=3)
        ref = ledger.seal(store)
    with pytest.raises(LedgerUnavailable, match="belongs to run run-1"):
        read_segment(store, "run-2", ref)


def test_a_missing_or_changed_segment_is_refused(store: ArtifactStore, tmp_path: Path):
    with LedgerWriter("run-1", "rollout", 0, tmp_path / "spool") as ledger:
        ledger.write("called", index=3)
        ref = ledger.seal(store)
    segment = Path(store.path(ref.key))
    segment.write_bytes(segment.read_bytes() * 2)
    with pytest.raises(StoreUnavailable, match="digest"):
        read_segment(store, "run-1", ref)
    segment.unlink()
    with pytest.raises(LedgerUnavailable, match="missing"):
        read_segment(store, "run-1", ref)


def test_a_ledger_that_can_not_be_written_fails_at_once(tmp_path: Path):
    (tmp_path / "spool").write_text("a file in the way")
    with pytest.raises(LedgerUnavailable, match="can not be written"):
        LedgerWriter("run-1", "rollout", 0, tmp_path / "spool")
