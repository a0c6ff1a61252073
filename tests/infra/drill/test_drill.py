"""The drill itself, on real trainer ranks: faults that are caught, one that is blamed wrongly, and one that is none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.drill.drill import drill
from infra.drill.fault import fault_of
from infra.drill.table import FAULTS

OWN = "tests.infra.drill.own_faults"
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.trainer
def test_an_aborted_rollout_that_is_kept_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_HOME", str(tmp_path))
    matrix = drill([fault for fault in FAULTS if fault.name == "aborted-kept"])
    assert matrix.ok and matrix.rows[1].red == ["ledger"]
    assert "was generated as aborted and stored as completed" in matrix.rows[1].reasons["ledger"]


@pytest.mark.trainer
def test_faults_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_HOME", str(tmp_path))
    names = ("twice_the_loss", "blamed_on_the_wrong_check", "nothing_wrong")
    matrix = drill([fault_of(f"{OWN}.{name}", ("tests",)) for name in names])
    clean, caught, blamed, harmless = matrix.rows
    assert clean.ok and clean.verdict == "PASS" and not clean.red
    assert caught.ok and caught.red == ["loss-oracle"] and "gradient" in caught.reasons["loss-oracle"]
    assert not blamed.ok and blamed.why == "caught by loss-oracle, and steps is green"
    assert not harmless.ok and harmless.why == "missed: the verdict is PASS"
    assert not matrix.ok and matrix.to_dict()["caught"] == 1 and matrix.to_dict()["false_alarms"] == 0


@pytest.mark.e2e
def test_the_quick_drill_catches_all_it_runs(tmp_path: Path):
    env = {**os.environ, "FANLINE_HOME": str(tmp_path)}
    env.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "infra.cli", "drill", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    matrix = json.loads(done.stdout)
    assert matrix["caught"] == matrix["faults"] == sum(f.quick for f in FAULTS) and matrix["false_alarms"] == 0
    assert all(row["red"] for row in matrix["rows"] if row["fault"] != "clean")
