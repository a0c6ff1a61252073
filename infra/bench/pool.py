"""Many small runs on a GPU pool with several workers: is a GPU given twice, a run lost, a priority overtaken?"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from infra.pool.history import in_part, over_committed, overtaken, read_history
from infra.prefect_api import prefect_api
from infra.settings import settings
from infra.supervisor import stop, supervised

GPUS, WORKERS, RUNS_A_WORKER = 4, 3, 2
QUEUES = {"urgent": 1, "normal": 2, "later": 3}
SIZES = (1, 2, 4)  # GPUs, in turn
HOLD_SECONDS = 0.5
FINAL_SECONDS = 1800.0
STOP_SECONDS = 60.0


def run(sizes: Sequence[int] = (50,)) -> dict[str, Any]:
    """Queue runs of 1, 2 and 4 GPUs in three queues, start three workers, and look at the lease records.

    Args:
        sizes: one number, of runs.
    """
    with tempfile.TemporaryDirectory(prefix="fanline-pool-") as name:
        folder = Path(name)
        if settings().prefect_api_url is None:  # a server of our own, and its database too
            os.environ["PREFECT_HOME"] = str(folder / "prefect")
        with prefect_api(folder / "server.log"):
            pool = f"bench-{folder.name.rsplit('-', 1)[1].lower().replace('_', '-')}"
            runs = asyncio.run(_queue_runs(pool, sizes[0], folder))
            began = time.monotonic()
            with _workers(pool, folder):
                states = asyncio.run(_until_final(list(runs)))
                seconds = time.monotonic() - began
            return _figures(runs, states, folder, pool) | {"seconds": round(seconds, 1)}


async def _queue_runs(pool: str, count: int, folder: Path) -> dict[UUID, dict[str, Any]]:
    """All runs, queued before any worker is there, the urgent ones last: {flow run: its name, queue and GPUs}."""
    from prefect.client.orchestration import get_client

    from infra.pool.deployment import create_pool, deploy_probe

    runs = {}
    async with get_client() as client:
        await create_pool(client, pool, QUEUES)
        deployments = {q: await deploy_probe(client, f"{pool}-{q}", pool, q, {"gpus": GPUS}) for q in QUEUES}
        for number in range(count):
            queue = list(QUEUES)[::-1][number * len(QUEUES) // count]
            name, gpus = f"{queue}-{number}", SIZES[number % len(SIZES)]
            parameters = {"name": name, "gpus": gpus, "seconds": HOLD_SECONDS, "record": str(folder)}
            made = await client.create_flow_run_from_deployment(deployments[queue], parameters=parameters)
            runs[made.id] = {"name": name, "queue": queue, "gpus": gpus}
    return runs


@contextlib.contextmanager
def _workers(pool: str, folder: Path) -> Iterator[None]:
    host = {"FANLINE_LOGICAL_GPUS": str(GPUS), "FANLINE_LEASE_DIR": str(folder / "leases")}
    env = {**os.environ, **host, "FANLINE_HOME": str(folder), "PREFECT_WORKER_QUERY_SECONDS": "1"}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "gpu-process", "--pool", pool]
    command += ["--limit", str(RUNS_A_WORKER)]
    with contextlib.ExitStack() as started:
        for number in range(WORKERS):
            log = folder / f"worker-{number}.log"
            worker = supervised([*command, "--name", f"w{number}"], env=env, log_path=log, grace_seconds=STOP_SECONDS)
            started.callback(stop, worker, STOP_SECONDS + 10)
        yield


async def _until_final(runs: list[UUID]) -> dict[UUID, list[Any]]:
    """Each run's states, once all have ended or the time is over."""
    from prefect.client.orchestration import get_client

    deadline = time.monotonic() + FINAL_SECONDS
    async with get_client() as client:
        while True:
            states = {run: await client.read_flow_run_states(run) for run in runs}
            if all(s and s[-1].is_final() for s in states.values()) or time.monotonic() > deadline:
                return states
            await asyncio.sleep(2)


def _figures(
    runs: dict[UUID, dict[str, Any]], states: dict[UUID, list[Any]], folder: Path, pool: str
) -> dict[str, Any]:
    history = read_history(folder / "leases" / "history.jsonl", pool)
    asked = {e["run"]: e["monotonic"] for e in history if e["event"] == "waits"}
    waits = [e["monotonic"] - asked[e["run"]] for e in history if e["event"] == "taken"]
    spans = {
        r["name"]: json.loads(p.read_text()) for r in runs.values() if (p := folder / f"{r['name']}.json").exists()
    }
    return {
        "runs": len(runs),
        "workers": WORKERS,
        "runs_a_worker": RUNS_A_WORKER,
        "logical_gpus": GPUS,
        "ended": dict(Counter(s[-1].name for s in states.values())),
        "lost": sorted(runs[run]["name"] for run, s in states.items() if not s[-1].is_completed()),
        "over_committed": over_committed(history) + _overlaps(spans),
        "in_part": in_part(history),
        "overtaken_in_line": overtaken(history),
        "overtaken_in_queue": _out_of_order(runs, states),
        "taken_by_gpus": dict(Counter(str(len(s["gpus"])) for s in spans.values())),
        "wait_seconds_median": round(statistics.median(waits), 2) if waits else None,
        "wait_seconds_longest": round(max(waits), 2) if waits else None,
    }


def _overlaps(spans: dict[str, dict[str, Any]]) -> list[str]:
    """GPUs that two runs say they had at the same time: the runs' own clocks, not the lease records."""
    wrong = []
    for gpu in sorted({g for s in spans.values() for g in s["gpus"]}):
        times = sorted((s["began"], s["ended"], name) for name, s in spans.items() if gpu in s["gpus"])
        wrong += [f"{gpu}: {b[2]} beside {a[2]}" for a, b in pairwise(times) if b[0] < a[1]]
    return wrong


def _out_of_order(runs: dict[UUID, dict[str, Any]], states: dict[UUID, list[Any]]) -> list[str]:
    """Runs that a worker took while one of a queue with an earlier priority was left on the schedule."""
    taken = {run: next((s.timestamp for s in found if s.is_pending()), None) for run, found in states.items()}
    order = sorted((when, QUEUES[runs[run]["queue"]], runs[run]["name"]) for run, when in taken.items() if when)
    return [f"{a[2]} before {b[2]}" for i, a in enumerate(order) for b in order[i + 1 :] if b[1] < a[1]]
