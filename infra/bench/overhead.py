"""What the flow costs: `tiny` as a flow beside the same stages called as plain functions, in turn."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.errors import InfraFault
from infra.prefect_api import prefect_api

SCENARIO = "tiny"
ALLOWED_SECONDS, ALLOWED_SHARE = 5.0, 0.05
ROOT = Path(__file__).resolve().parents[2]


def run(sizes: Sequence[int] = (2,)) -> dict[str, Any]:
    """Wall-clock seconds of both, in processes of their own, beside one Prefect server; imports are not in them.

    Args:
        sizes: one number, of rounds; the order changes from round to round.
    """
    rounds = sizes[0]
    measured: dict[str, list[dict[str, Any]]] = {"plain": [], "flow": []}
    with tempfile.TemporaryDirectory(prefix="fanline-overhead-") as folder:
        root = Path(folder)
        os.environ["PREFECT_HOME"] = str(root / "prefect")
        with prefect_api(root / "server.log"):
            for number in range(rounds):
                for kind in ("plain", "flow") if number % 2 == 0 else ("flow", "plain"):
                    measured[kind].append(_one(kind, root / f"{kind}-{number}"))
    plain, flow = (statistics.median(m["seconds"] for m in measured[kind]) for kind in ("plain", "flow"))
    allowed = max(ALLOWED_SECONDS, ALLOWED_SHARE * plain)
    return {
        "scenario": SCENARIO,
        "rounds": rounds,
        "plain_seconds": [round(m["seconds"], 2) for m in measured["plain"]],
        "flow_seconds": [round(m["seconds"], 2) for m in measured["flow"]],
        "overhead_seconds": round(flow - plain, 2),
        "overhead_share": round((flow - plain) / plain, 4),
        "allowed_seconds": round(allowed, 2),
        "within": flow - plain <= allowed,
        "same_weights": len({m["weights"] for runs in measured.values() for m in runs}) == 1,
        "stages": {kind: _medians([m["stages"] for m in runs]) for kind, runs in measured.items()},
        "verdicts": sorted({m["verdict"] for runs in measured.values() for m in runs}),
    }


def _medians(stages: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each stage's seconds; a stage is timed by the same stopwatch in both kinds."""
    return {name: round(statistics.median(s[name] for s in stages), 2) for name in stages[0]}


def _one(kind: str, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    env = {**os.environ, "FANLINE_HOME": str(folder), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "infra.bench.one_run", kind, SCENARIO, str(folder)]
    with (folder / "errors.log").open("w") as errors:
        ended = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
    if ended.returncode != 0:
        last = (folder / "errors.log").read_text().splitlines()[-5:]
        raise InfraFault(f"The {kind} run ended with {ended.returncode}: " + " ".join(last))
    return json.loads(ended.stdout.splitlines()[-1])
