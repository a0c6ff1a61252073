"""A Prefect API for this process: the configured one, or a server of our own that ends with us."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from infra.errors import InfraFault
from infra.pool.files import alone
from infra.ports import free_port
from infra.settings import settings
from infra.supervisor import stop, supervised

SEND_SECONDS = 10.0
REACH_SECONDS = 10.0
QUIET = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "PREFECT_CLI_PROMPT": "false"}


@contextlib.contextmanager
def prefect_api(log_path: Path, deadline_seconds: float = 120) -> Iterator[str]:
    """Yield the URL of a Prefect API; call it before `prefect` is imported.

    Without PREFECT_API_URL a server is started on the loopback address, on the same database as `prefect server start`
    would use, so that the runs can be looked at later. It ends with this process, also when that is killed.

    Raises:
        InfraFault: the server did not answer in time; names its log.
    """
    os.environ.update(QUIET)
    if configured := settings().prefect_api_url:
        _refuse_unreachable(configured)
        yield configured
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with alone(settings().prefect_home / "fanline-start.lock"):  # two that make the database at once break each other
        server = supervised([*command, "--no-services"], env={**os.environ, "PREFECT_API_URL": url}, log_path=log_path)
        try:
            wait_until_healthy(url, server, log_path, deadline_seconds)
        except BaseException:
            stop(server, deadline_seconds=15)
            raise
    os.environ["PREFECT_API_URL"] = url
    try:
        yield url
    finally:
        _send_what_waits()
        os.environ.pop("PREFECT_API_URL")
        stop(server, deadline_seconds=15)


def _refuse_unreachable(url: str) -> None:
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=REACH_SECONDS).close()
    except (OSError, ValueError) as cause:
        raise InfraFault(
            f"The Prefect API {url} does not answer: {cause}.",
            next_step="Start it, or unset PREFECT_API_URL to let each run start a server of its own.",
            ids=[url],
        ) from cause


def _send_what_waits() -> None:
    """Logs and events that Prefect still holds in the background would go nowhere once the server is gone."""
    if "prefect.flow_engine" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=SEND_SECONDS)


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log_path: Path, deadline_seconds: float) -> None:
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(f"{url}/health"):
            return
        time.sleep(0.2)
    raise InfraFault("The local Prefect server did not start.", next_step=f"Read {log_path}.", ids=[url])
