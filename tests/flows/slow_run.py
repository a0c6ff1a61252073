"""A run of one slow iteration: long enough in its hook for something to be done to it there."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from infra.chaos.processes import wait_until

# What such a run is looked at for is its weights: other tests train again.
WEIGHTS_ONLY = ("--set", "checks.determinism=false", "--set", "checks.invariance=false")
SLOW = ("tiny", "--set", "rollout.generate=tests.flows.user_hooks.slow_parts", "--set", "rollout.iterations=1")
Start = Callable[..., subprocess.Popen[str]]


def start_slow(start_run: Start, home: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    return start_run(
        *SLOW, *WEIGHTS_ONLY, *more, FANLINE_HOME=str(home), FANLINE_HOOK_PACKAGES="hooks,tests", **environment
    )


def wait_for_a_rollout(home: Path) -> None:
    """Until a rollout is in its hook: the ledger's spool says so."""

    def called() -> bool:
        return any('"called"' in p.read_text() for p in home.glob("spool/*/*.rollout.*.jsonl"))

    assert wait_until(called, 300), "no rollout was started"
