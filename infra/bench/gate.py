"""A part of a bench in a process of its own that starts, waits until the others are ready too, and then measures."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from infra.errors import InfraFault
from infra.supervisor import stop, supervised

POLL_SECONDS = 0.05
STOP_SECONDS = 15.0
LOG_LINES = 15
ROOT = Path(__file__).resolve().parents[2]
READY, GO, RESULT = "ready", "go", "result.json"


class Gated:
    """Context manager over `python -m MODULE FOLDER ARGUMENTS…`, which calls `wait_for_go` and, at its end, `answer`.

    Args:
        folder: of the process alone, made here; its output is in `log` there.
        env: variables on top of this process's own.
    """

    def __init__(self, module: str, folder: Path, *arguments: str, env: Mapping[str, str] | None = None):
        self.module, self.folder = module, folder
        self.arguments, self.env = arguments, dict(env or {})

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        command = [sys.executable, "-m", self.module, str(self.folder), *self.arguments]
        log = self.folder / "log"
        self._process = supervised(command, env={**os.environ, **self.env}, log_path=log, cwd=ROOT, private_tmp=True)
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process, STOP_SECONDS)

    def wait_ready(self) -> None:
        """Until it has nothing left to do but to measure.

        Raises:
            InfraFault: it ended; shows its last lines.
        """
        while not (self.folder / READY).exists():
            self._look()

    def measure(self) -> Any:
        """Let it go on, and return what it answers; errors as of `wait_ready`."""
        self.wait_ready()
        (self.folder / GO).touch()
        while not (self.folder / RESULT).exists():
            self._look()
        return json.loads((self.folder / RESULT).read_text())

    def _look(self) -> None:
        if (code := self._process.poll()) is not None and not (self.folder / RESULT).exists():
            last = "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise InfraFault(f"{self.module} ended with {code}. Its last lines:\n{last}")
        time.sleep(POLL_SECONDS)


def wait_for_go(folder: Path) -> None:
    """For the process: say that it is ready, and wait until it may measure."""
    (folder / READY).touch()
    while not (folder / GO).exists():
        time.sleep(POLL_SECONDS)


def answer(folder: Path, result: Any) -> None:
    """For the process: what it found, whole or not at all."""
    half = folder / "half.json"
    half.write_text(json.dumps(result))
    half.rename(folder / RESULT)
