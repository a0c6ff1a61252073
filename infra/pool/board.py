"""The board: who holds which GPU of this host, and who waits in which order; for people and as JSON."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from infra.pool.inventory import Gpu, Inventory, inventory, usage
from infra.pool.leases import LeaseFolder
from infra.settings import Settings


def board(now: Settings) -> dict[str, Any]:
    """Everything about the GPUs of this host: {host, emulated, gpus: [...], waiting: [...]}."""
    have = inventory(now)
    return board_of(LeaseFolder(now.lease_dir, free_mib=now.gpu_free_mib), have)


def board_of(folder: LeaseFolder, have: Inventory) -> dict[str, Any]:
    holders = folder.holders(have.gpus)
    used = {} if have.emulated else usage()
    ids = {gpu.id for gpu in have.gpus}
    waiting = [t for t in folder.waiting() if not ids.isdisjoint(t.claim.candidates)]
    return {
        "host": have.host,
        "emulated": have.emulated,
        "free": len(have.gpus) - len(holders),
        "gpus": [_gpu_row(gpu, holders.get(gpu.id, {})) | _used(used.get(gpu.id)) for gpu in have.gpus],
        "waiting": [
            {"place": n, "run": t.claim.run, "flow_run": t.claim.flow_run, "pool": t.claim.pool, "gpus": t.claim.gpus}
            | {"priority": t.claim.priority, "process": t.claim.process}
            for n, t in enumerate(waiting, start=1)
        ],
    }


def _gpu_row(gpu: Gpu, held: dict[str, Any]) -> dict[str, Any]:
    row = {"gpu": gpu.index, "id": gpu.id, "accelerator": gpu.accelerator, "memory_gib": gpu.memory_gib}
    return row | {name: held.get(name) for name in ("run", "flow_run", "pool", "process", "since")}


def _used(now: Any) -> dict[str, Any]:
    return {} if now is None else {"used_mib": now.used_mib, "pids": list(now.pids)}


def artifact_key(host: str) -> str:
    """The key of a host's board among Prefect's artifacts."""
    return "gpu-pool-" + re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")


def artifact_rows(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """The board as rows of one table: GPUs first, then the line."""
    gpus = [
        {"what": f"GPU {g['gpu']} ({g['accelerator']})", "run": g["run"] or "free", "pool": g["pool"] or ""}
        | {"gpus": "", "since": g["since"] or "", "process": g["process"] or ""}
        for g in shown["gpus"]
    ]
    line = [
        {"what": f"place {w['place']} in line", "run": w["run"], "pool": w["pool"], "gpus": str(w["gpus"])}
        | {"since": "", "process": w["process"]}
        for w in shown["waiting"]
    ]
    return gpus + line


def rendered(shown: dict[str, Any]) -> RenderableType:
    """The board for a terminal."""
    kind = "logical GPUs" if shown["emulated"] else "GPUs"
    table = Table("", "run", "pool", "GPUs", "since", "process", box=None, pad_edge=False)
    for row in artifact_rows(shown):
        table.add_row(*row.values())
    count = len(shown["gpus"])
    return Group(Text(f"{shown['host']}: {shown['free']} of {count} {kind} free", "bold"), table)
