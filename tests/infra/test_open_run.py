"""What a run says of itself when it is opened."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra import open_run
from infra.scenario.load import load


def test_what_it_can_not_show_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("FANLINE_HOME", str(tmp_path))
    monkeypatch.setattr(open_run, "flow_run", SimpleNamespace(get_id=lambda: "0123456789ab"))
    monkeypatch.setattr(open_run, "get_run_logger", lambda: logging.getLogger("run"))
    plumbing = load("tiny", ["rollout.reward=hooks.rewards.deepscaler", "plumbing_only=true"])
    assert open_run.open_run(plumbing, None, None).run_id == "tiny-0123456789ab"
    assert [(r.levelname, "gives 0 to every answer" in r.message) for r in caplog.records] == [("WARNING", True)]
