import json
import os
from pathlib import Path
from types import SimpleNamespace

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


def test_every_event_outlives_its_process_at_once(tmp_path: Path):
    with LedgerWriter("run-1", "rollout", 0, tmp_path) as ledger:
        ledger.write("called", index=3)
        assert json.loads(ledger.path.read_text())["index"] == 3


def test_events_are_on_the_disk_in_time_and_before_they_are_published(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[int] = []  # lines of the file at each fsync of it
    clock = iter((0.0, 0.1, 0.3, 0.3, 0.4, 9.0)).__next__

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == ledger.path:
            synced.append(len(ledger.path.read_text().splitlines()))

    monkeypatch.setattr("infra.ledger.time", SimpleNamespace(monotonic=clock))
    with LedgerWriter("run-1", "rollout", 0, tmp_path) as ledger:
        monkeypatch.setattr(os, "fsync", fsync)
        for index in range(3):  # at 0.1 s, 0.3 s and 0.4 s
            ledger.write("called", index=index)
        ledger.seal(store)
    assert synced == [2, 3]


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
