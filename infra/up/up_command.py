"""`fanline up` and `fanline down`: what one machine needs, started and ended as a whole."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from infra.errors import ConfigurationError, InfraFault
from infra.pool.process import start_time
from infra.settings import settings
from infra.up.state import UpState, folder, running, state_file

READY_SECONDS = 300.0
DOWN_SECONDS = 15.0
PORT_SECONDS = 6.0
LOOK_SECONDS = 0.2


def up(port: int) -> tuple[UpState, bool]:
    """Start server, workers and deployments, or find them running; returns the state and whether it was up before.

    Raises:
        ConfigurationError: the port is taken, or it already runs on another one.
        InfraFault: something did not start; names its log.
    """
    home = settings().home
    if (state := running(home)) is not None:
        if state.port != port:
            raise ConfigurationError(
                f"It is up already, on port {state.port}.", next_step="`fanline down` first.", ids=[state.pid]
            )
        return _wait_until_ready(home, state), True
    _refuse_taken(port)
    process = _start_daemon(home, port)
    return _wait_until_ready(home, _first_state(home, process)), False


def down() -> UpState | None:
    """End all of it; None where nothing runs.

    Raises:
        InfraFault: it did not end within 15 seconds.
    """
    home = settings().home
    state = running(home)
    if state is None:
        state_file(home).unlink(missing_ok=True)
        return None
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_SECONDS
    while start_time(state.pid) == state.started:
        if time.monotonic() > deadline:
            os.kill(state.pid, signal.SIGKILL)  # its services end with it
            raise InfraFault(
                f"The supervisor {state.pid} did not end in {DOWN_SECONDS:g} s and was killed.",
                next_step=f"Read {folder(home) / 'logs'}.",
                ids=[state.pid],
            )
        time.sleep(LOOK_SECONDS)
    state_file(home).unlink(missing_ok=True)
    return state


def _refuse_taken(port: int) -> None:
    """What a killed supervisor had started needs a moment to end; another program's port stays taken."""
    deadline = time.monotonic() + PORT_SECONDS
    while _is_taken(port):
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"Port {port} of 127.0.0.1 is taken by another program.",
                next_step="Choose another one: `fanline up --port N`.",
                ids=[port],
            )
        time.sleep(LOOK_SECONDS)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections do not count
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start_daemon(home: Path, port: int) -> subprocess.Popen[bytes]:
    log = folder(home) / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    state_file(home).unlink(missing_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "infra.up.daemon", "--port", str(port)],
            env={**os.environ, "FANLINE_HOME": str(home.absolute())},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def _first_state(home: Path, process: subprocess.Popen[bytes]) -> UpState:
    while process.poll() is None:
        if (state := UpState.read(home)) is not None:
            return state
        time.sleep(LOOK_SECONDS)
    raise InfraFault("The supervisor did not start.", next_step=f"Read {folder(home) / 'logs' / 'supervisor.log'}.")


def _wait_until_ready(home: Path, state: UpState) -> UpState:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        now = UpState.read(home)
        if now is not None and now.phase == "ready":
            return now
        if now is not None and now.phase == "failed":
            raise InfraFault(now.said, next_step=f"Read {folder(home) / 'logs'}.")
        if running(home) is None:
            break
        time.sleep(LOOK_SECONDS)
    raise InfraFault(
        f"The supervisor {state.pid} ended before everything ran, or took longer than {READY_SECONDS:g} s.",
        next_step=f"Read {folder(home) / 'logs'}.",
        ids=[state.pid],
    )


def run_up(port: int, *, as_json: bool) -> None:
    """The command `fanline up`."""
    state, before = up(port)
    home = settings().home
    if as_json:
        urls = {"ui": state.ui_url, "api": state.api_url}
        facts = {
            "up_before": before,
            "pid": state.pid,
            "store": settings().store_uri,
            "logs": str(folder(home) / "logs"),
        }
        print(json.dumps({**urls, **facts}))
        return
    print(f"fanline is up{' already' if before else ''}: {state.ui_url}")
    print(f"store  {settings().store_uri}\nlogs   {folder(home) / 'logs'}")
    if not before:
        print(state.said)
    print(f"For `prefect` commands: export PREFECT_API_URL={state.api_url}")


def run_down(*, as_json: bool) -> None:
    """The command `fanline down`."""
    ended = down()
    if as_json:
        print(json.dumps({"ended": ended is not None, "pid": ended.pid if ended else None}))
    else:
        print("fanline is down" if ended else "fanline was not up")
