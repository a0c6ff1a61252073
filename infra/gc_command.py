"""`fanline gc`: what is old enough to go; it goes only when told so."""

import json
import time
from pathlib import Path

from infra.open_run import absolute
from infra.settings import settings
from infra.store import ArtifactStore
from infra.upkeep.gc import left_folders, old_flow_runs, remove, remove_folders, stored_runs
from infra.upkeep.retention import Retention, StoredRun

DAY_SECONDS = 86_400
MIB = 2**20


def collect(store_uri: str | None, retention: Retention, *, remove_them: bool, as_json: bool) -> None:
    """Print the runs that may go, and remove them if asked; old flow runs too, where a Prefect server is set."""
    here = settings()
    store = ArtifactStore(absolute(store_uri or here.store_uri))
    runs = stored_runs(store, here.spool_dir)
    now = time.time()
    expired = retention.expired(runs, now)
    left = left_folders(store, runs, here.spool_dir, now - retention.days * DAY_SECONDS)
    if remove_them:
        remove(expired, store, here.spool_dir)
        remove_folders(left)
    flow_runs = old_flow_runs(retention.days, delete=remove_them) if here.prefect_api_url else None
    if as_json:
        print(json.dumps(_document(store.uri, runs, expired, left, flow_runs, removed=remove_them)))
        return
    for run in expired:
        age = (now - run.last_written) / DAY_SECONDS
        print(f"{run.run_id:32} {age:6.0f} days {run.objects:6} objects {run.bytes / MIB:9.1f} MiB")
    size = sum(run.bytes for run in expired) / MIB
    done = "removed" if remove_them else "may go"
    print(f"{len(expired)} of {len(runs)} runs, {size:.1f} MiB in {store.uri}: {done}.")
    for run in (r for r in runs if r.held_by):
        print(f"{run.run_id} stays: {run.held_by}.")
    if left:
        print(f"{len(left)} folders of runs that it does not have, in {here.spool_dir}: {done}.")
    if flow_runs is not None:
        print(f"{flow_runs} flow runs of {here.prefect_api_url}: {done}.")
    if not remove_them:
        print("Nothing was removed; `fanline gc --yes` does it.")


def _document(
    uri: str,
    runs: list[StoredRun],
    expired: list[StoredRun],
    left: list[Path],
    flow_runs: int | None,
    *,
    removed: bool,
) -> dict:
    return {
        "store": uri,
        "removed": removed,
        "runs": len(runs),
        "expired": [{"run": r.run_id, "bytes": r.bytes, "objects": r.objects} for r in expired],
        "held": {r.run_id: r.held_by for r in runs if r.held_by},
        "left_folders": [folder.name for folder in left],
        "flow_runs": flow_runs,
    }
