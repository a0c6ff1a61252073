"""A PostgreSQL server of the tests' own, from Debian's package: an unprivileged user, a folder that goes with it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.chaos.processes import wait_until
from infra.ports import free_port
from infra.supervisor import stop, supervised

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Connection URL, as Prefect's server takes it, of an empty database."""
    assert BINARIES, "PostgreSQL is not installed: apt-get install postgresql"
    binaries, folder, port = BINARIES[-1], Path(tempfile.mkdtemp(prefix="fanline-postgres-")), free_port()
    # PostgreSQL refuses to run as root; the package brings a user for it.
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres", "postgres")
    data = str(folder / "data")
    initdb = [*as_user, str(binaries / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder)
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"]  # loopback only, no socket file, no fsync
    server = supervised(
        [*as_user, str(binaries / "postgres"), "-D", data, *options],
        env={"PATH": os.environ["PATH"]},
        log_path=folder / "postgres.log",
        cwd=folder,
    )
    ready = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    assert wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, 60), folder / "postgres.log"
    yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
    stop(server, 30)
    shutil.rmtree(folder)
