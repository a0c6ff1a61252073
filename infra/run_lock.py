"""One process at a time works on a run of this host: a lock that the kernel gives back when its holder is gone."""

import fcntl
import os
import time
from pathlib import Path
from typing import TextIO

from infra.errors import InfraFault

WAIT_SECONDS = 15.0  # what a killed run started is gone by then, and so is its process
LOOK_SECONDS = 0.2

_held: dict[Path, TextIO] = {}


def hold(run_id: str, spool: Path, wait_seconds: float = WAIT_SECONDS) -> None:
    """Hold the run until this process ends; a process that holds it already goes on.

    Raises:
        InfraFault: another process still works on it after `wait_seconds`; gives its process id.
    """
    path = spool / "lock"
    if path in _held:
        return
    spool.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    deadline = time.monotonic() + wait_seconds
    while not _locked(file):
        if time.monotonic() > deadline:
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise InfraFault(
                f"Process {owner} of this host still works on run {run_id}.",
                next_step="Wait for its end, cancel it, or start a new run.",
                ids=[run_id, owner],
            )
        time.sleep(LOOK_SECONDS)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    _held[path] = file


def is_held(spool: Path) -> bool:
    """Whether some process of this host works on the run whose spool folder this is."""
    path = spool / "lock"
    if not path.exists():
        return False
    with path.open("a+") as file:
        return path in _held or not _locked(file)


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
