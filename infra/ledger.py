"""The append-only record of what was generated, graded, packed and trained, by id: one file a process.

A writer appends to a spool file of its own and publishes it as an immutable segment when its stage ends. Each line
carries the run id, so a ledger of an earlier run can never be mistaken for this one's.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import LedgerUnavailable
from infra.store import ArtifactStore, ObjectRef

LEDGER_VERSION = 1
SYNC_SECONDS = 0.25


@dataclass
class LedgerWriter:
    """Appends the events of one process in one stage attempt.

    Args:
        run_id: the run that every line belongs to.
        stage: `rollout`, `training`, ...
        iteration: iteration of the stage.
        spool: local folder for the file while it grows.

    Example: with LedgerWriter(run_id, "rollout", 0, spool) as ledger: ledger.write("called", index=3, attempt=1)
    """

    run_id: str
    stage: str
    iteration: int
    spool: Path
    writer: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}")

    def __post_init__(self) -> None:
        self._lines = 0
        self._synced = time.monotonic()
        try:
            self.spool.mkdir(parents=True, exist_ok=True)
            self.path = self.spool / f"{self.run_id}.{self.stage}.{self.iteration}.{self.writer}.jsonl"
            self._file = self.path.open("x", encoding="utf-8")
        except OSError as cause:
            raise self._unwritable(cause) from cause

    def write(self, event: str, **ids: Any) -> None:
        """Append one event, JSON values only; it outlives this process when this returns."""
        self.write_all(event, [ids])

    def write_all(self, event: str, rows: Iterable[dict[str, Any]]) -> None:
        """Append an event for each row of ids; all outlive this process when this returns.

        They go to the disk every 0.25 s of writing, and all of them before the segment is published: a host that dies
        loses lines of stages only that it had not finished, which are done again.
        """
        stamp = {
            "version": LEDGER_VERSION,
            "run": self.run_id,
            "stage": self.stage,
            "iteration": self.iteration,
            "writer": self.writer,
        }
        lines = [{**stamp, "line": self._lines + n, "event": event, **ids} for n, ids in enumerate(rows)]
        try:
            self._file.write("".join(json.dumps(line, sort_keys=True, allow_nan=False) + "\n" for line in lines))
            self._file.flush()
        except OSError as cause:
            raise self._unwritable(cause) from cause
        self._lines += len(lines)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def seal(self, store: ArtifactStore) -> ObjectRef:
        """Publish the segment; the spool file goes away once the store has it."""
        self._sync()
        self._file.close()
        key = f"runs/{self.run_id}/ledger/{self.iteration:04d}-{self.stage}-{self.writer}.jsonl"
        ref = store.publish_file(key, self.path)
        self.path.unlink()
        return ref

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as cause:
            raise self._unwritable(cause) from cause
        self._synced = time.monotonic()

    def __enter__(self) -> "LedgerWriter":
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def _unwritable(self, cause: OSError) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"The ledger of run {self.run_id} can not be written in {self.spool}: {cause}.",
            next_step="Free some space or set FANLINE_SPOOL to a folder that this user may write.",
            ids=[self.run_id, self.stage, self.iteration],
        )


def read_segment(store: ArtifactStore, run_id: str, ref: ObjectRef) -> list[dict[str, Any]]:
    """The events of one published segment, in order.

    Raises:
        LedgerUnavailable: the segment is missing, cut, or belongs to another run.
    """
    if not store.exists(ref.key):
        raise LedgerUnavailable(f"Ledger segment {ref.key} of run {run_id} is missing.", ids=[run_id, ref.key])
    events = [json.loads(line) for line in store.read(ref).splitlines()]
    for number, event in enumerate(events):
        if event["run"] != run_id or event["line"] != number:
            raise LedgerUnavailable(
                f"Ledger segment {ref.key} line {number} belongs to run {event['run']} line {event['line']}, "
                f"not to run {run_id}.",
                ids=[run_id, ref.key, number],
            )
    return events
