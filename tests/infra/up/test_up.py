"""`fanline up` and `down`, by their commands; what runs is looked for by the home folder in its environment."""

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.ports import free_port
from infra.up.services import LONGEST_PAUSE_SECONDS, pause_seconds
from infra.up.state import UpState, running, start_time
from tests.flows.processes import of_home, wait_until
from tests.machine_fixture import Machine, environment_of

AGAIN_SECONDS = 120.0


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Machine]:
    """A machine on which nothing is up; whatever a test leaves up is ended."""
    machine = Machine(home=tmp_path, api_url=f"http://127.0.0.1:{free_port()}/api", env=environment_of(tmp_path))
    yield machine
    machine.fanline("down")
    assert wait_until(lambda: of_home(tmp_path) == {}, 30), of_home(tmp_path)


def up(machine: Machine) -> dict[str, Any]:
    port = machine.api_url.split(":")[2].split("/")[0]
    done = machine.fanline("up", "--port", port, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def processes(machine: Machine, words: str) -> list[int]:
    """Those of this home, without the supervisors between."""
    found = of_home(machine.home).items()
    return [pid for pid, command in found if words in command and "infra/supervisor.py" not in command]


@pytest.mark.prefect
def test_up_is_repeatable_keeps_what_dies_and_leaves_nothing(bare: Machine):
    first = up(bare)
    again = up(bare)
    assert (again["pid"], first["up_before"], again["up_before"]) == (first["pid"], False, True)

    worker = processes(bare, "worker start --pool cpu")
    assert len(worker) == 1
    os.kill(worker[0], signal.SIGKILL)
    assert wait_until(lambda: processes(bare, "worker start --pool cpu") not in ([], worker), AGAIN_SECONDS)

    server = processes(bare, "prefect server start")
    os.kill(server[0], signal.SIGKILL)
    assert wait_until(lambda: processes(bare, "prefect server start") not in ([], server), AGAIN_SECONDS)
    assert wait_until(lambda: answers(bare), AGAIN_SECONDS)

    os.kill(first["pid"], signal.SIGKILL)
    assert wait_until(lambda: of_home(bare.home) == {}, 30), of_home(bare.home)
    assert up(bare)["pid"] != first["pid"]

    down = bare.fanline("down")
    assert down.returncode == 0 and "is down" in down.stdout, down.stderr
    assert of_home(bare.home) == {}
    assert "was not up" in bare.fanline("down").stdout


def answers(machine: Machine) -> bool:
    try:
        urllib.request.urlopen(f"{machine.api_url}/health", timeout=5).close()
    except OSError:
        return False
    return True


def test_a_port_that_is_taken_is_said(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        machine = Machine(home=tmp_path, api_url="", env=environment_of(tmp_path))
        refused = machine.fanline("up", "--port", port)
    assert refused.returncode == 2 and f"Port {port} of 127.0.0.1 is taken" in refused.stderr


def test_a_process_that_got_the_same_number_later_is_not_ours(tmp_path: Path):
    mine = UpState(pid=os.getpid(), started=start_time(os.getpid()) or 0, port=1)
    mine.write(tmp_path)
    assert running(tmp_path) == mine
    UpState(pid=os.getpid(), started=mine.started - 1, port=1).write(tmp_path)
    assert running(tmp_path) is None
    assert running(tmp_path / "elsewhere") is None


def test_pauses_grow_to_a_limit():
    pauses = [pause_seconds(deaths) for deaths in range(1, 12)]
    assert pauses == sorted(pauses) and pauses[:3] == [1.0, 2.0, 4.0] and pauses[-1] == LONGEST_PAUSE_SECONDS
