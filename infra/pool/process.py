"""Processes of this host by an identity that is never used twice, and by what they carry in their environment."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
KILL_AGAIN_SECONDS = 0.05


def host_name() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """What this boot of the host is called; process ids and start times begin anew with each."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """One process: a process id is used again, with its start time (clock ticks since boot) and boot it is not.

    Written as `host/boot/pid/started`.
    """

    host: str
    boot: str
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of a running process of this host; None where it has ended."""
        started = start_time(pid)
        return None if started is None else cls(host=host_name(), boot=boot_id(), pid=pid, started=started)

    @classmethod
    def read(cls, text: str) -> ProcessIdentity | None:
        """The identity that a text says; None where it is none."""
        host, _, rest = text.partition("/")
        parts = rest.split("/")
        if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
            return None
        return cls(host=host, boot=parts[0], pid=int(parts[1]), started=int(parts[2]))

    def __str__(self) -> str:
        return f"{self.host}/{self.boot}/{self.pid}/{self.started}"

    @property
    def here(self) -> bool:
        """Whether this process belongs, or belonged, to this host."""
        return self.host == host_name()

    def alive(self) -> bool:
        """Whether it still runs. Only the host itself can say."""
        assert self.here, f"{self} is a process of another host"
        return self.boot == boot_id() and start_time(self.pid) == self.started


def start_time(pid: int) -> int | None:
    """Start time in clock ticks since boot; None for a process that has ended, also one that was not collected yet."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def carrying(variable: str, value: str) -> list[int]:
    """Ids of the processes that were started with this variable in their environment, whatever parent they have.

    Processes of other users do not show theirs and are not found.
    """
    marker = f"{variable}={value}".encode()
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return sorted(found)


def end_carrying(variable: str, value: str) -> int:
    """Kill every process that carries a variable, until none is left; returns how many they were."""
    killed: set[int] = set()
    while pids := [pid for pid in carrying(variable, value) if pid != os.getpid()]:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        killed.update(pids)
        time.sleep(KILL_AGAIN_SECONDS)
    return len(killed)


def command_of(pid: int) -> str:
    """The beginning of a process's command line, for a person; empty where it has ended."""
    return whole_command_of(pid)[:120]


def whole_command_of(pid: int) -> str:
    """A process's command line; empty where it has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
