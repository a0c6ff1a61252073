"""`fanline up` and `down`, by their commands; what runs is looked for by the home folder in its environment."""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from infra.chaos.processes import of_home, wait_until
from infra.pool.process import start_time
from infra.up.services import LONGEST_PAUSE_SECONDS, Kept, Service, pause_seconds
from infra.up.state import UpState, running
from tests.machine_fixture import Machine, environment_of

AGAIN_SECONDS = 120.0


def up(machine: Machine) -> dict[str, Any]:
    port = machine.api_url.split(":")[2].split("/")[0]
    done = machine.fanline("up", "--port", port, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def processes(machine: Machine, words: str) -> list[int]:
    """Those of this home, without the supervisors between."""
    found = of_home(machine.home).items()
    return [pid for pid, command in found if words in command and "infra/supervisor.py" not in command]


@pytest.mark.postgres
@pytest.mark.prefect
def test_up_is_repeatable_keeps_what_dies_and_leaves_nothing(on_postgres: Machine):
    """On PostgreSQL, only because that machine is there already."""
    first = up(on_postgres)
    assert first["up_before"] is True

    for program in ("worker start --pool cpu", "prefect server start"):
        before = processes(on_postgres, program)
        assert len(before) == 1
        os.kill(before[0], signal.SIGKILL)
        assert wait_until(lambda b=before, p=program: processes(on_postgres, p) not in ([], b), AGAIN_SECONDS)

    os.kill(first["pid"], signal.SIGKILL)
    assert wait_until(lambda: of_home(on_postgres.home) == {}, AGAIN_SECONDS), of_home(on_postgres.home)
    again = up(on_postgres)
    assert again["pid"] != first["pid"] and again["up_before"] is False


def test_down_where_nothing_is_up_says_so(tmp_path: Path):
    down = Machine(home=tmp_path, api_url="", env=environment_of(tmp_path)).fanline("down")
    assert down.returncode == 0 and "was not up" in down.stdout


def test_what_dies_is_started_again_after_a_pause(tmp_path: Path):
    service = Service(name="short", command=["true"], grace_seconds=1.0)
    kept = Kept(service=service, env=dict(os.environ), log_path=tmp_path / "short.log")
    kept.start()
    said: list[str] = []
    assert wait_until(lambda: said.append(kept.look() or "") or len([s for s in said if s]) >= 3, 60)
    told = [line for line in said if line]
    assert told == [
        "short ended with 0; it starts again in 1 s",
        "short is started again",
        "short ended with 0; it starts again in 2 s",
    ]


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
