"""What runs beside a run while chaos is made: a Prefect server and a store, both can be taken away and brought back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from s3fs import S3FileSystem

from infra.chaos.ray_nodes import RayNodes
from infra.chaos.s3_server import BUCKET, SeaweedFS, create_bucket
from infra.ports import free_port
from infra.prefect_api import QUIET, wait_until_healthy
from infra.store import ArtifactStore
from infra.supervisor import stop, supervised

SMALL_DISK_BYTES = 64 * 2**20


class PrefectServer:
    """A Prefect server on the loopback address with a database of its own.

    Args:
        folder: keeps database and log.
    """

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        """Start it, on the same port and database as before, and return when it answers."""
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        env = {**os.environ, **QUIET, "PREFECT_HOME": str(self.folder), "PREFECT_API_URL": self.url}
        log = self.folder / "server.log"
        self.process = supervised(command, env=env, log_path=log)
        wait_until_healthy(self.url, self.process, log, deadline_seconds=120)

    def kill(self) -> None:
        assert self.process is not None, "the server was not started"
        stop(self.process, 20)


@contextlib.contextmanager
def prefect_server(folder: Path) -> Iterator[PrefectServer]:
    server = PrefectServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class FolderStore:
    """The store of most rows: a folder."""

    def __init__(self, folder: Path):
        self.store, self.environment = ArtifactStore(str(folder)), dict[str, str]()

    def working(self) -> list[str]:
        """Command lines of what runs elsewhere than on the run's own host."""
        return []


class JoinedStore(FolderStore):
    """A folder, and the nodes of a Ray cluster that the run joins."""

    def __init__(self, folder: Path, nodes: RayNodes):
        super().__init__(folder)
        self.nodes, self.environment = nodes, nodes.driver_environment

    def working(self) -> list[str]:
        return self.nodes.working()


class BucketStore:
    """A store on a real S3 server of this machine."""

    def __init__(self, weed: SeaweedFS):
        self.weed, self.store, self.environment = weed, ArtifactStore(f"s3://{BUCKET}/chaos"), weed.environment

    def working(self) -> list[str]:
        return []


@contextlib.contextmanager
def folder_store(home: Path) -> Iterator[FolderStore]:
    yield FolderStore(home / "store")


@contextlib.contextmanager
def joined_store(home: Path) -> Iterator[JoinedStore]:
    """Two nodes with a GPU each for trainer ranks, one for the engine."""
    folder = home.parent / f"{home.name}-nodes"
    folder.mkdir()
    nodes = RayNodes(folder)
    try:
        for name, role in (("trainer-a", "trainer"), ("trainer-b", "trainer"), ("engine-a", "engine")):
            nodes.start(name, role, gpus=1)
        yield JoinedStore(home / "store", nodes)
    finally:
        nodes.close()


@contextlib.contextmanager
def small_disk_store(home: Path) -> Iterator[FolderStore]:
    """A store on a disk of its own (a tmpfs, which root may mount) that can be filled without harm."""
    folder = home / "small-disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "fanline-chaos", str(folder)], check=True)
    try:
        yield FolderStore(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def bucket_store(home: Path) -> Iterator[BucketStore]:
    weed = SeaweedFS(home.parent / f"{home.name}-s3")
    weed.start()
    try:
        create_bucket(weed.url)
        os.environ.update(weed.environment)  # this process looks into the store too
        yield BucketStore(weed)
    finally:
        weed.kill()
        S3FileSystem.clear_instance_cache()  # the next server has another address
        for name in weed.environment:
            os.environ.pop(name, None)


def fill(folder: Path) -> None:
    """Take what room a disk has left."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def make_room(folder: Path) -> None:
    """Give back what `fill` took."""
    (folder / "filler").unlink()
