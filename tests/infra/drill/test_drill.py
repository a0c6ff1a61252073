"""The drill by its command, on real trainer ranks: faults that are caught, one blamed wrongly, one that is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.drill.table import FAULTS

SCENES = ("base", "aborted")
OWN = "tests.infra.drill.own_faults"
ROOT = Path(__file__).resolve().parents[3]


def drill(home: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    env = {**os.environ, "FANLINE_HOME": str(home), "FANLINE_HOOK_PACKAGES": "hooks,tests"}
    env.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "infra.cli", "drill", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.stdout.startswith("{"), done.stdout[-4000:] + done.stderr[-4000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.e2e
def test_faults_of_ones_own_beside_one_of_the_table(tmp_path: Path):
    names = ("twice_the_loss", "twice_where_defined", "blamed_on_the_wrong_check", "never_called", "nothing_wrong")
    own = [word for name in names for word in ("--hook", f"{OWN}:{name}")]
    code, matrix = drill(tmp_path, "aborted-kept", *own)
    rows = {(row["scene"], row["fault"]): row for row in matrix["rows"]}
    assert all(rows[scene, "clean"]["verdict"] == "PASS" and not rows[scene, "clean"]["red"] for scene in SCENES)
    aborted = rows["aborted", "aborted-kept"]
    assert aborted["ok"] and aborted["red"] == ["ledger"]
    assert "was generated as aborted and stored as completed" in aborted["reasons"]["ledger"]
    caught, defined, blamed, idle, harmless = (rows["base", name] for name in names)
    for row in (caught, defined):
        assert row["ok"] and row["red"] == ["loss-oracle"] and "loss term" in row["reasons"]["loss-oracle"]
    assert not blamed["ok"] and blamed["why"] == "caught by loss-oracle, and steps is green"
    assert not idle["ok"]
    assert idle["why"] == "the replaced function was never called: tasks.rollout.draw.evaluation_slots"
    assert not harmless["ok"] and harmless["why"] == "missed: the verdict is PASS"
    assert (code, matrix["caught"], matrix["faults"], matrix["false_alarms"]) == (1, 3, 6, 0)


@pytest.mark.e2e
def test_the_quick_drill_catches_all_it_runs(tmp_path: Path):
    code, matrix = drill(tmp_path, "--quick")
    assert code == 0, [(row["fault"], row["why"]) for row in matrix["rows"] if not row["ok"]]
    assert matrix["caught"] == matrix["faults"] == sum(f.quick for f in FAULTS) and matrix["false_alarms"] == 0
    assert all(row["red"] for row in matrix["rows"] if row["fault"] != "clean")
