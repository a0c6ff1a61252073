"""Remove old runs: their objects in the store, their logs on this host, their flow runs on the Prefect server."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from infra.open_run import STORE_FILE
from infra.run_lock import is_held
from infra.store import ArtifactStore
from infra.upkeep.retention import StoredRun

FLOWS = ("fanout-regression", "fanout-nightly", "fault-drill")
PAGE = 200


def stored_runs(store: ArtifactStore, spool: Path) -> list[StoredRun]:
    """Every run of a store, with what holds it: an accepted baseline, or a process of this host that works on it."""
    accepted = baselines(store)
    by_run: dict[str, list[tuple[float, int]]] = {}
    for key, written, size in store.listing("runs"):
        by_run.setdefault(key.split("/")[1], []).append((written, size))
    return [
        StoredRun(
            run_id=run_id,
            scenario=run_id.rpartition("-")[0],
            last_written=max(written for written, _ in objects),
            objects=len(objects),
            bytes=sum(size for _, size in objects),
            held_by="baseline" if run_id in accepted else "running" if is_held(spool / run_id) else None,
        )
        for run_id, objects in sorted(by_run.items())
    ]


def baselines(store: ArtifactStore) -> set[str]:
    """The runs that accepted baselines name (`run` of every JSON object under `baselines/`)."""
    records = [store.read_json(key) for key in store.keys("baselines") if key.endswith(".json")]
    return {record["run"] for record in records}


def remove(runs: Iterable[StoredRun], store: ArtifactStore, spool: Path) -> None:
    """Remove runs whole; `run.json` goes first, so that nobody goes on with a run of which half is gone."""
    for run in runs:
        keys = store.keys(f"runs/{run.run_id}")
        store.remove(sorted(keys, key=lambda key: not key.endswith("/run.json")))
        shutil.rmtree(spool / run.run_id, ignore_errors=True)


def left_folders(store: ArtifactStore, runs: Iterable[StoredRun], spool: Path, until: float) -> list[Path]:
    """Spool folders of this host whose run is gone from the store, or never came there, and which nobody uses.

    Args:
        runs: those that the store has.
        until: only folders in which nothing was written since; seconds since the epoch.
    """
    known = {run.run_id for run in runs}
    said = [path for path in sorted(spool.glob(f"*/{STORE_FILE}")) if path.read_text() == store.uri]
    return [
        path.parent
        for path in said
        if path.parent.name not in known and _last_written(path.parent) < until and not is_held(path.parent)
    ]


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))


def remove_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def old_flow_runs(days: float, *, delete: bool) -> int:
    """How many ended flow runs of fanline's flows are older; with `delete` they go, with logs and task runs."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterEndTime,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import TERMINAL_STATES

    until = datetime.now(UTC) - timedelta(days=days)
    ended = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(TERMINAL_STATES)))
    which = FlowRunFilter(end_time=FlowRunFilterEndTime(before_=until), state=ended)  # type: ignore[arg-type]
    flows = FlowFilter(name=FlowFilterName(any_=list(FLOWS)))
    count = offset = 0
    with get_client(sync_client=True) as client:
        while found := client.read_flow_runs(flow_filter=flows, flow_run_filter=which, limit=PAGE, offset=offset):
            count += len(found)
            if delete:
                for flow_run in found:
                    client.delete_flow_run(flow_run.id)
            else:
                offset += len(found)
    return count
