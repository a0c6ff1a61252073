"""What `fanline up` has started on this machine, as its state file says, and whether that still runs."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from infra.pool.process import start_time

Phase = Literal["starting", "ready", "failed"]


@dataclass(frozen=True, kw_only=True)
class UpState:
    """One supervisor: `pid` and `started` (clock ticks since boot) together name a process for good.

    `said` is the outcome of its deploy, or what went wrong.
    """

    pid: int
    started: int
    port: int
    phase: Phase = "starting"
    said: str = ""

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def ui_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, home: Path) -> None:
        """Replace the state file in one step."""
        path = state_file(home)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)

    @classmethod
    def read(cls, home: Path) -> Self | None:
        """The state as it was last written; None where there is none."""
        try:
            return cls(**json.loads(state_file(home).read_text()))
        except FileNotFoundError:
            return None


def folder(home: Path) -> Path:
    """Where state, logs and Prefect's database are."""
    return home.absolute() / "up"


def state_file(home: Path) -> Path:
    return folder(home) / "up.json"


def running(home: Path) -> UpState | None:
    """The state of a supervisor that is alive; a number that another process got meanwhile is not it."""
    state = UpState.read(home)
    return state if state is not None and start_time(state.pid) == state.started else None
