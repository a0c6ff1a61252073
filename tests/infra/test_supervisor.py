"""Real processes: whatever way a supervised command or its starter ends, nothing that it started is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from infra.supervisor import SHARED_MEMORY, descendants, stop, supervised

DEADLINE = 20.0

# A family that is hard to find: a child in a session of its own, and an orphan by double fork that ignores SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def sleeper(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"{name}.tmp").write_text(str(os.getpid()))
    (folder / f"{name}.tmp").rename(folder / name)
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    sleeper("session")
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    sleeper("orphan")
sleeper("child")
"""
NAMES = ("child", "session", "orphan")

# A starter that runs the family under a supervisor and then waits.
STARTER = """
import os, sys, time
from pathlib import Path
from infra.supervisor import supervised
folder = Path(sys.argv[1])
process = supervised([sys.executable, "-c", sys.argv[2], str(folder)], env=os.environ, log_path=folder / "log")
(folder / "supervisor.tmp").write_text(str(process.pid))
(folder / "supervisor.tmp").rename(folder / "supervisor")
time.sleep(600)
"""


def _until(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _pids(folder: Path, names=NAMES) -> list[int]:
    _until(lambda: all((folder / name).exists() for name in names), "the family did not start")
    return [int((folder / name).read_text()) for name in names]


def _gone(pids: list[int]) -> None:
    _until(lambda: not any(map(_alive, pids)), f"left running: {[p for p in pids if _alive(p)]}")


def _start(code: str, folder: Path, **options) -> subprocess.Popen[bytes]:
    return supervised([sys.executable, "-c", code, str(folder)], env=os.environ, log_path=folder / "log", **options)


def test_stop_ends_children_in_other_sessions_and_orphans(tmp_path):
    process = _start(FAMILY, tmp_path)
    pids = _pids(tmp_path)
    assert set(pids) <= descendants(process.pid)
    assert stop(process, DEADLINE) == 128 + signal.SIGKILL
    assert not any(map(_alive, pids))
    assert "was stopped" in (tmp_path / "log").read_text()


def test_what_a_finished_command_left_is_killed_and_its_exit_code_kept(tmp_path):
    quits = FAMILY.replace('sleeper("child")', 'time.sleep(0.5); print("done", flush=True); sys.exit(7)')
    process = _start(quits, tmp_path)
    pids = _pids(tmp_path, ("session", "orphan"))
    assert process.wait(DEADLINE) == 7
    assert not any(map(_alive, pids))
    assert "done" in (tmp_path / "log").read_text()


def test_a_command_killed_by_a_signal_gives_128_and_the_signal(tmp_path):
    assert _start("import os; os.kill(os.getpid(), 9)", tmp_path).wait(DEADLINE) == 128 + signal.SIGKILL


def test_the_end_of_a_command_that_ends_at_once_is_seen(tmp_path):
    """Also when it has ended before its supervisor looks for the first time: one in a few dozen did."""
    started = [supervised(["true"], env=os.environ, log_path=tmp_path / "log") for _ in range(60)]
    assert [process.wait(DEADLINE) for process in started] == [0] * len(started)


def test_a_program_that_is_not_there_is_said(tmp_path):
    process = supervised(["no-such-program"], env=os.environ, log_path=tmp_path / "log")
    assert process.wait(DEADLINE) == 127
    said = (tmp_path / "log").read_text()
    assert said == "supervisor: no-such-program can not be started: No such file or directory\n"


def test_kill_9_of_the_starter_ends_everything(tmp_path):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path), FAMILY])
    pids = _pids(tmp_path, (*NAMES, "supervisor"))
    starter.kill()
    starter.wait()
    _gone(pids)


def test_kill_9_of_the_supervisor_ends_the_command(tmp_path):
    process = _start(FAMILY, tmp_path)
    child, *others = _pids(tmp_path)
    process.kill()
    process.wait()
    _gone([child])
    for pid in others:  # nobody is left to end these: this is what a supervisor is for
        os.kill(pid, signal.SIGKILL)


def test_nested_supervisors_leave_nothing(tmp_path):
    process = supervised(
        [sys.executable, "-c", STARTER, str(tmp_path), FAMILY], env=os.environ, log_path=tmp_path / "outer"
    )
    pids = _pids(tmp_path, (*NAMES, "supervisor"))
    stop(process, DEADLINE)
    assert not any(map(_alive, pids))


def test_the_grace_lets_a_command_end_by_itself(tmp_path):
    code = (
        "import signal, sys, time; from pathlib import Path\n"
        "def end(*_): print('tidied up', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); Path(sys.argv[1], 'ready').touch(); time.sleep(600)"
    )
    process = _start(code, tmp_path, grace_seconds=DEADLINE)
    _until((tmp_path / "ready").exists, "did not start")
    assert stop(process, DEADLINE) == 0
    assert "tidied up" in (tmp_path / "log").read_text()


def test_shared_memory_of_the_command_is_removed_and_that_of_others_kept(tmp_path):
    others = SHARED_MEMORY / f"torch_{os.getpid()}_of_this_test"
    others.touch()
    code = (
        "import mmap, os, sys, time; from pathlib import Path\n"
        "shm = Path('/dev/shm'); name = f'torch_{os.getpid()}_1_0'; (shm / name).touch()\n"
        "load = shm / f'sglang_loads_test_{os.getpid()}.shm'; load.write_bytes(bytes(4096))\n"
        "file = load.open('r+b'); view = mmap.mmap(file.fileno(), 4096)\n"
        "Path(sys.argv[1], 'names').write_text(name + ' ' + load.name); Path(sys.argv[1], 'ready').touch()\n"
        "time.sleep(600)"
    )
    process = _start(code, tmp_path)
    _until((tmp_path / "ready").exists, "did not start")
    names = (tmp_path / "names").read_text().split()
    assert all((SHARED_MEMORY / name).exists() for name in names)
    stop(process, DEADLINE)
    try:
        assert not any((SHARED_MEMORY / name).exists() for name in names)
        assert others.exists()
    finally:
        others.unlink()


def test_a_private_tmp_is_removed(tmp_path):
    code = (
        "import sys, tempfile; from pathlib import Path\n"
        "Path(sys.argv[1], 'where').write_text(tempfile.gettempdir()); tempfile.mkstemp()"
    )
    assert _start(code, tmp_path, private_tmp=True).wait(DEADLINE) == 0
    where = Path((tmp_path / "where").read_text())
    assert where.name.startswith("fanline-")
    assert not where.exists()


def test_only_the_main_thread_may_start(tmp_path):
    refused: list[BaseException] = []

    def start() -> None:
        with pytest.raises(AssertionError, match="main thread") as caught:
            _start("pass", tmp_path)
        refused.append(caught.value)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert len(refused) == 1
