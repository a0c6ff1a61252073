"""Files that are held: the kernel lets go of them when their last holder ends, also by kill -9.

Descriptors are closed by exec, so that a child program never holds on to what its parent held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODE = 0o666  # less the umask: a folder that several users share needs a umask that lets them write
READ_BYTES = 2**16


def hold(path: Path) -> int | None:
    """Take a file for this process alone; its descriptor, or None where another process holds it."""
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        if path.exists() and os.path.samestat(os.fstat(held), path.stat()):
            return held
        os.close(held)  # it was removed between opening and locking


def let_go(held: int) -> None:
    """Free a held file, also for copies of the descriptor in forked children."""
    fcntl.flock(held, fcntl.LOCK_UN)
    os.close(held)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait for a file that everybody holds for a moment only, and hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        let_go(held)


def write_record(held: int, record: dict[str, Any]) -> None:
    """Replace a held file's content. A kill in the middle leaves the old or the new first line, and that is read."""
    line = json.dumps(record).encode() + b"\n"
    os.pwrite(held, line, 0)
    os.ftruncate(held, len(line))


def read_record(path: Path) -> dict[str, Any]:
    """A file's record; empty where nothing was written yet."""
    with path.open("rb") as file:
        line = file.read(READ_BYTES).split(b"\n", 1)[0]
    return json.loads(line) if line else {}


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Add one line to a file that only grows."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, MODE)
    try:
        os.write(target, json.dumps(record).encode() + b"\n")
    finally:
        os.close(target)
