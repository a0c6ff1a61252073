import os
import subprocess
import sys

import pytest

from infra.chaos.processes import wait_until
from infra.pool.orphans import RunProcess
from infra.pool.process import ProcessIdentity, carrying, end_carrying

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_an_identity_is_the_same_after_writing_and_ends_with_its_process():
    process = subprocess.Popen(SLEEP)
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None and ProcessIdentity.read(str(identity)) == identity
    assert identity.here and identity.alive()
    process.kill()
    assert wait_until(lambda: not identity.alive(), 20), "one that was not collected has ended too"
    process.wait()
    assert ProcessIdentity.of(process.pid) is None


def test_another_process_with_the_same_number_is_another():
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    earlier = ProcessIdentity(host=mine.host, boot=mine.boot, pid=mine.pid, started=mine.started - 1)
    other_boot = ProcessIdentity(host=mine.host, boot="00000000", pid=mine.pid, started=mine.started)
    elsewhere = ProcessIdentity(host="elsewhere", boot=mine.boot, pid=mine.pid, started=mine.started)
    assert not earlier.alive() and not other_boot.alive() and not elsewhere.here


@pytest.mark.parametrize("text", ["", "4711", "vm:4711", "vm/boot/1/2", "a/b/c/d:a/b/c/d:x", "refused", "ended"])
def test_what_another_worker_wrote_is_no_process_of_ours(text: str):
    assert RunProcess.read(text) is None


def test_a_process_of_a_run_is_the_same_after_writing():
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    process = RunProcess.of(mine, os.getpid(), "abc")
    assert RunProcess.read(str(process)) == process and not process.gone()


def test_whoever_carries_a_variable_is_found_and_ended_in_any_session(tmp_path):
    family = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "time.sleep(600)"
    )
    value = tmp_path.name + str(os.getpid())
    first = subprocess.Popen([sys.executable, "-c", family], env={**os.environ, "FANLINE_TEST_MARK": value})
    other = subprocess.Popen(SLEEP, env={**os.environ, "FANLINE_TEST_MARK": value + "0"})
    try:
        assert wait_until(lambda: len(carrying("FANLINE_TEST_MARK", value)) == 2, 20)
        assert end_carrying("FANLINE_TEST_MARK", value) == 2
        assert carrying("FANLINE_TEST_MARK", value) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        first.wait()
