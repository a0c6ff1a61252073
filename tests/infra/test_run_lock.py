"""A run of this host has one process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra import run_lock
from infra.chaos.processes import wait_until
from infra.errors import InfraFault

HOLD = """
import sys, time
from pathlib import Path
from infra.run_lock import hold
hold("r", Path(sys.argv[1]))
hold("r", Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout and first.stdout.readline() == "held\n"
    with pytest.raises(InfraFault, match=f"Process {first.pid} of this host still works on run r"):
        run_lock.hold("r", tmp_path, wait_seconds=0)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    run_lock.hold("r", tmp_path, wait_seconds=5)
    assert (tmp_path / "lock").read_text() == str(run_lock.os.getpid())


def test_a_child_of_the_holder_does_not_hold(tmp_path: Path):
    leaves_a_child = HOLD.replace("time.sleep(600)", "import subprocess; subprocess.Popen(['sleep', '5'])")
    subprocess.run([sys.executable, "-c", leaves_a_child, str(tmp_path)], check=True)

    def free() -> bool:
        with (tmp_path / "lock").open("a+") as file:
            return run_lock._locked(file)

    assert wait_until(free, 5)
