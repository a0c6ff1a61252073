"""Processes of one run, known by the FANLINE_HOME in their environment, whatever parent or session they have."""

import time
from collections.abc import Callable
from pathlib import Path

from infra.pool.process import carrying, whole_command_of


def of_home(home: Path) -> dict[int, str]:
    """{process id: command line} of every process that was started for a home folder."""
    found = {pid: whole_command_of(pid) for pid in carrying("FANLINE_HOME", str(home))}
    return {pid: command for pid, command in found.items() if command}


def named(home: Path, name: str) -> list[int]:
    """The processes of a home folder whose command line holds `name`, in the order they were started; no supervisor."""
    found = of_home(home)
    return sorted(pid for pid, command in found.items() if name in command and "supervisor.py" not in command)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition came true within a time that is only a limit, not a measurement."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()
