"""Run a command so that, whatever way it or its starter ends, nothing that it started is left.

Process groups miss children with a session of their own and a walk from the command misses orphans, so a small program
stands between: a child subreaper (orphans come back to it), with a parent-death signal from the process that started
it. It ends when the command ends, on SIGTERM, SIGINT or SIGHUP, or when its starter dies; before it does, it kills
every descendant until none is left and removes the shared memory that they left in /dev/shm.

As a program: `python infra/supervisor.py [--grace S] [--private-tmp] [--parent PID] -- command …`. It uses the
standard library only and imports nothing of fanline.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SHARED_MEMORY = Path("/dev/shm")
LOAD_FILE = "/dev/shm/sglang_loads_"
WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOK_SECONDS = 1.0
NOT_STARTED = 127  # as shells have it
KILL_AGAIN_SECONDS = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


def supervised(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log_path: Path,
    grace_seconds: float = 0.5,
    private_tmp: bool = False,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command under a supervisor and return the supervisor's process; its exit code is the command's.

    Args:
        env: the command's whole environment.
        log_path: standard output and error of command and supervisor are appended here.
        grace_seconds: how long the command has to end by itself after SIGTERM before everything is killed.
        private_tmp: give the command a TMPDIR of its own, removed at the end.

    Must be called from the main thread: the kernel sends the parent-death signal when the starting THREAD ends.
    """
    assert threading.current_thread() is threading.main_thread(), "start supervised processes from the main thread"
    options = ["--grace", str(grace_seconds), "--parent", str(os.getpid()), *(["--private-tmp"] if private_tmp else [])]
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *options, "--", *command],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def die_with_parent() -> None:
    """To be called in a child before it becomes a program: it is killed when the thread that started it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def stop(process: subprocess.Popen[bytes], deadline_seconds: float) -> int:
    """End a supervised command with all its descendants and return its exit code.

    Raises:
        subprocess.TimeoutExpired: something could not be killed within the deadline.
    """
    process.terminate()
    return process.wait(deadline_seconds)


def descendants(root: int) -> set[int]:
    """Process ids of all children, grandchildren, … of a process, whatever session or group they are in."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent_of(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            found.add(child)
            todo.append(child)
    return found


def _parent_of(proc_entry: Path) -> int | None:
    try:
        # The command name in parentheses may hold spaces and parentheses itself: read after the last one.
        return int((proc_entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


class Family:
    """All processes and shared memory that one supervised command ever had, as far as they were seen."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self.load_files: set[Path] = set()

    def look(self) -> set[int]:
        """Note who is there now. A server's load file has no process id in its name: it is known by who maps it."""
        alive = descendants(os.getpid())
        self.pids |= alive
        for pid in alive:
            self.load_files |= _mapped_load_files(pid)
        return alive

    def kill(self) -> int:
        """Kill descendants until none is left, also those that are started meanwhile; returns how many they were."""
        killed: set[int] = set()
        _reap()
        while alive := self.look():
            for pid in alive:
                _send(pid, signal.SIGKILL)
            killed |= alive
            time.sleep(KILL_AGAIN_SECONDS)
            _reap()
        return len(killed)

    def remove_shared_memory(self) -> None:
        """Remove SGLang's load files and torch's `torch_<pid>_*` blocks of processes that are gone."""
        gone = {str(pid) for pid in self.pids if not Path(f"/proc/{pid}").exists()}
        blocks = (p for p in SHARED_MEMORY.glob("torch_*_*") if p.name.split("_")[1] in gone)
        for path in (*self.load_files, *blocks):
            path.unlink(missing_ok=True)


def _mapped_load_files(pid: int) -> set[Path]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    return {
        Path(line[line.index("/") :]) for line in lines if "/dev/shm/sglang_loads_" in line and "(deleted" not in line
    }


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap() -> dict[int, int]:
    """Collect every ended child, orphans that came back included: {process id: exit code, negative for a signal}."""
    ended: dict[int, int] = {}
    try:
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            ended[result[0]] = os.waitstatus_to_exitcode(result[1])
    except ChildProcessError:
        pass
    return ended


def _wait(child: int, family: Family, seconds: float | None, until_signal: bool) -> int | None:
    """The child's exit code, or None after a signal that asks to end (if waited for) or after `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        if (code := _reap().get(child)) is not None:
            return code
        left = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - time.monotonic())
        if left <= 0:
            return None
        caught = signal.sigtimedwait(WATCHED, left)
        if caught is None:
            family.look()
        elif caught.si_signo != signal.SIGCHLD and until_signal:
            return None


def _start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(1)

    return subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=in_child)


def _supervise(command: Sequence[str], grace_seconds: float, env: Mapping[str, str]) -> int:
    family = Family()
    started = time.monotonic()
    # The object stays until the end: a Popen that is collected reaps its child, whose exit would then never be seen.
    try:
        child = _start(command, env)
    except OSError as cause:
        print(f"supervisor: {command[0]} can not be started: {cause.strerror}", file=sys.stderr)
        return NOT_STARTED
    code = _wait(child.pid, family, None, until_signal=True)
    if code is None:
        family.look()
        _send(child.pid, signal.SIGTERM)
        code = _wait(child.pid, family, grace_seconds, until_signal=False)
    killed = family.kill()
    child.returncode = code
    family.remove_shared_memory()
    how = "was stopped" if code is None else f"ended with {code}"
    print(f"supervisor: {command[0]} {how} after {time.monotonic() - started:.1f} s; {killed} killed", file=sys.stderr)
    return 128 + signal.SIGKILL if code is None else code if code >= 0 else 128 - code


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a command and leave nothing behind.")
    parser.add_argument("--grace", type=float, default=0.5, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process whose death ends the command")
    parser.add_argument("--private-tmp", action="store_true", help="a TMPDIR of the command's own, removed at the end")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    # Blocked signals wait for sigtimedwait: none is lost between two looks.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != options.parent:
        return 1
    if not options.private_tmp:
        return _supervise(options.command, options.grace, os.environ)
    private = tempfile.mkdtemp(prefix="fanline-")
    try:
        return _supervise(options.command, options.grace, {**os.environ, "TMPDIR": private})
    finally:
        shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
