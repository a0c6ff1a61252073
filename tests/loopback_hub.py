"""A hub on the loopback address: the part of the Hugging Face hub's protocol that its client uses to download.

Small files carry git's blob id, large ones the SHA-256 of large file storage, as on the real hub. It can break a
connection in the middle of a file and can send other bytes of the same length.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from infra.ports import free_port

LARGE = 10_000  # bytes from which a file is kept in large file storage
PIECE = 1 << 16


@dataclass(frozen=True)
class Asked:
    """One request, as it came."""

    method: str
    path: str
    range: str | None


@dataclass
class LoopbackHub:
    """Repositories by `models/owner/name` or `datasets/owner/name`, each a mapping of file name to bytes.

    Args:
        cut: file name and bytes after which the connection breaks, once.
        corrupt: names of files that are sent with other bytes of the same length.
    """

    url: str
    repositories: dict[str, dict[str, bytes]]
    cut: dict[str, int] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)

    def commit(self, repository: str) -> str:
        files = self.repositories[repository]
        return hashlib.sha1(b"".join(n.encode() + files[n] for n in sorted(files)), usedforsecurity=False).hexdigest()

    def ranges_of(self, name: str) -> list[str | None]:
        """Range headers of the downloads of a file, in order."""
        return [a.range for a in self.asked if a.method == "GET" and a.path.endswith(f"/{name}")]

    def app(self) -> Starlette:
        api, file = "/api/{kind}/{owner}/{name}", "/resolve/{revision}/{path:path}"
        both = ["GET", "HEAD"]
        routes = [
            Route(api, self._info),
            Route(api + "/revision/{revision:path}", self._info),
            Route(api + "/tree/{revision}", self._tree),
            Route("/{kind}/{owner}/{name}" + file, self._file, methods=both),
            Route("/{owner}/{name}" + file, self._file, methods=both),
        ]
        return Starlette(routes=routes)

    def _find(self, request: Request) -> tuple[str, Response | None]:
        """The repository asked for, or the hub's refusal."""
        self.asked.append(Asked(request.method, request.url.path, request.headers.get("range")))
        where = request.path_params
        key = f"{where.get('kind', 'models')}/{where['owner']}/{where['name']}"
        if key not in self.repositories:
            return key, _refusal("RepoNotFound")
        if where.get("revision", "main") not in ("main", self.commit(key)):
            return key, _refusal("RevisionNotFound")
        return key, None

    async def _info(self, request: Request) -> Response:
        key, refusal = self._find(request)
        if refusal:
            return refusal
        files = self.repositories[key]
        siblings = [
            {"rfilename": n, "size": len(files[n]), **_blob(files[n], "blobId", "sha256")} for n in sorted(files)
        ]
        plain = {"_id": "0" * 24, "id": key.partition("/")[2], "private": False, "gated": False, "disabled": False}
        counts = {"tags": [], "downloads": 0, "likes": 0, "lastModified": "2026-01-01T00:00:00.000Z"}
        return JSONResponse({**plain, **counts, "sha": self.commit(key), "siblings": siblings})

    async def _tree(self, request: Request) -> Response:
        key, refusal = self._find(request)
        files = self.repositories.get(key, {})
        entries = [
            {"type": "file", "path": n, "size": len(files[n]), **_blob(files[n], "oid", "oid")} for n in sorted(files)
        ]
        return refusal or JSONResponse(entries)

    async def _file(self, request: Request) -> Response:
        key, refusal = self._find(request)
        name = request.path_params["path"]
        if refusal or name not in self.repositories[key]:
            return refusal or _refusal("EntryNotFound")
        data = self.repositories[key][name]
        begin, end = _range(request.headers.get("range"), len(data))
        etag = f'"{_digest(data)}"'
        headers = {"ETag": etag, "X-Linked-ETag": etag, "X-Linked-Size": str(len(data)), "Accept-Ranges": "bytes"}
        headers |= {"X-Repo-Commit": self.commit(key), "Content-Length": str(end - begin)}
        if request.method == "HEAD":
            return Response(headers=headers)
        sent = bytes(len(data)) if name in self.corrupt else data
        if ranged := "range" in request.headers:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return StreamingResponse(self._pieces(name, sent[begin:end]), 206 if ranged else 200, headers)

    async def _pieces(self, name: str, data: bytes) -> AsyncIterator[bytes]:
        limit = self.cut.pop(name, len(data))
        for begin in range(0, limit, PIECE):
            yield data[begin : min(begin + PIECE, limit)]
        if limit < len(data):
            raise ConnectionResetError(f"{name} cut after {limit} bytes, as the test asked for")


def _refusal(code: str) -> Response:
    return Response(status_code=404, headers={"X-Error-Code": code, "X-Error-Message": code})


def _digest(data: bytes) -> str:
    """What the hub calls a file by: SHA-256 in large file storage, git's blob id otherwise."""
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _blob(data: bytes, id_name: str, large_name: str) -> dict:
    if len(data) < LARGE:
        return {id_name: _digest(data)}
    pointer = hashlib.sha1(_digest(data).encode(), usedforsecurity=False).hexdigest()
    return {id_name: pointer, "lfs": {large_name: _digest(data), "size": len(data), "pointerSize": 134}}


def _range(header: str | None, size: int) -> tuple[int, int]:
    begin, _, end = (header or "bytes=0-").removeprefix("bytes=").partition("-")
    return int(begin or 0), int(end) + 1 if end else size


@contextlib.contextmanager
def loopback_hub(repositories: dict[str, dict[str, bytes]]) -> Iterator[LoopbackHub]:
    """A hub that runs in a thread of this process until the block ends."""
    port = free_port()
    hub = LoopbackHub(url=f"http://127.0.0.1:{port}", repositories=repositories)
    server = uvicorn.Server(uvicorn.Config(hub.app(), host="127.0.0.1", port=port, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield hub
    server.should_exit = True
    thread.join()
