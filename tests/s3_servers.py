"""Real S3 servers on the loopback address, and a front that puts a server's bad moments before one."""

from __future__ import annotations

import http.client
import os
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from infra.chaos.s3_server import REGION, WRITER, SeaweedFS, create_bucket


@dataclass
class S3Server:
    """Where a server answers; `environment` is what a process needs to use it."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        return {**WRITER, **REGION, "AWS_ENDPOINT_URL": self.url}


@contextmanager
def using(environment: Mapping[str, str]) -> Iterator[None]:
    """This process's S3 clients use a server and keys."""
    from s3fs import S3FileSystem

    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    S3FileSystem.clear_instance_cache()
    try:
        yield
    finally:
        S3FileSystem.clear_instance_cache()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def moto() -> Iterator[S3Server]:
    """moto's server: it knows no keys and keeps everything in memory."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    given = S3Server(f"http://{host}:{port}")
    # What moto keeps belongs to the process: a server before this one has left its buckets.
    urllib.request.urlopen(f"{given.url}/moto-api/reset", data=b"").close()
    create_bucket(given.url)
    yield given
    server.stop()


@contextmanager
def seaweedfs(folder: Path) -> Iterator[SeaweedFS]:
    weed = SeaweedFS(folder)
    weed.start()
    create_bucket(weed.url)
    yield weed
    weed.kill()


ERRORS = {
    "SlowDown": (503, "Please reduce your request rate."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "AccessDenied": (403, "Access Denied"),
    "RequestTimeTooSkewed": (403, "The difference between the request time and the current time is too large."),
    "QuotaExceeded": (507, "No space left"),
}


class Front:
    """Answers for a server: with an error while `moments` has some for the request's method, else with its answer."""

    def __init__(self, behind: S3Server):
        host, port = behind.url.removeprefix("http://").split(":")
        front, self.moments, self.seen = self, list[tuple[str, str]](), list[str]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                front.seen.append(f"{self.command} {self.path}")
                if code := front.bad_moment(self.command):
                    status, words = ERRORS[code]
                    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{words}</Message></Error>"
                    self.give(status, {"Content-Type": "application/xml"}, text.encode())
                    return
                connection = http.client.HTTPConnection(host, int(port), timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                self.give(answer.status, dict(answer.getheaders()), answer.read(), answer.getheader("Content-Length"))

            def give(self, status: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.server = S3Server(f"http://127.0.0.1:{self._server.server_port}")

    def bad_moment(self, method: str) -> str | None:
        for moment in self.moments:
            if moment[0] == method:
                self.moments.remove(moment)
                return moment[1]
        return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
