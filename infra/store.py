"""The artifact store: one local folder or S3 prefix, in which nothing that was published is ever overwritten."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from infra.errors import FanlineError, StoreUnavailable
from infra.store_faults import in_words, maybe_there, patiently

PATIENCE_SECONDS = 90.0  # a remote store that is restarted is back by then
PROBE_PATIENCE_SECONDS = 15.0
Result = TypeVar("Result")


class AlreadyPublished(StoreUnavailable):
    """Another content was published under this key before."""


@dataclass(frozen=True)
class ObjectRef:
    """Where a published object is and what it holds. `key` is relative to the store; `sha256` is of its bytes."""

    key: str
    sha256: str
    size: int

    def to_dict(self) -> dict[str, Any]:
        return {"key": self.key, "sha256": self.sha256, "size": self.size}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ObjectRef":
        return cls(key=data["key"], sha256=data["sha256"], size=data["size"])


def canonical_json(value: Any) -> bytes:
    """One spelling of a JSON value, so that equal values have equal digests. NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _written(about: dict[str, Any]) -> float:
    """When an object was written, as its filesystem says: a folder's mtime, S3's LastModified."""
    return about["mtime"] if "mtime" in about else about["LastModified"].timestamp()


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _write_durably(path: Path, content: bytes | Path) -> None:
    """A new file that survives a loss of power. A given file becomes it by a second name where one can be made: state
    of several GB is not written twice."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        try:
            os.link(content, path)
        except OSError:  # another filesystem, or one without links
            shutil.copyfile(content, path)
    with path.open("r+b") as file:
        os.fsync(file.fileno())


@dataclass(frozen=True)
class ArtifactStore:
    """Objects by key under `uri` (a folder, `file://…` or `s3://bucket/prefix`), through fsspec.

    Raises:
        StoreUnavailable: the store can not be read or written; names the key and the cause.
    """

    uri: str

    @cached_property
    def _location(self) -> tuple[fsspec.AbstractFileSystem, str]:
        fs, root = fsspec.core.url_to_fs(self.uri)
        return fs, root.rstrip("/")

    @property
    def is_local(self) -> bool:
        return "file" in self._location[0].protocol

    def path(self, key: str) -> str:
        """The filesystem's own path of a key."""
        return f"{self._location[1]}/{key}"

    def publish(self, key: str, data: bytes) -> ObjectRef:
        """Create an object, once. Publishing the same bytes again is accepted; other bytes are refused.

        Raises:
            AlreadyPublished: the key holds other content.
        """
        return self._published(ObjectRef(key=key, sha256=sha256(data), size=len(data)), data)

    def publish_json(self, key: str, value: Any) -> ObjectRef:
        return self.publish(key, canonical_json(value))

    def publish_file(self, key: str, path: Path) -> ObjectRef:
        """Publish a file without reading it into memory; `{digest}` in the key stands for the start of its sha256.

        The file may become the object itself: the caller removes it and does not write to it again.
        """
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        ref = ObjectRef(key=key.replace("{digest}", digest[:16]), sha256=digest, size=path.stat().st_size)
        return self._published(ref, path)

    def _published(self, ref: ObjectRef, content: bytes | Path) -> ObjectRef:
        created = self._told("write", ref.key, lambda: self._create(ref.key, content))
        if not created and sha256(self.read_unverified(ref.key)) != ref.sha256:
            raise AlreadyPublished(f"{self.uri}/{ref.key} was published before with other content.", ids=[ref.key])
        return ref

    def _create(self, key: str, content: bytes | Path) -> bool:
        """Conditional create: a temporary name and a link locally, `If-None-Match: *` on S3. False if it exists."""
        fs, _ = self._location
        path = self.path(key)
        if not self.is_local:
            try:
                if isinstance(content, Path):
                    fs.put_file(str(content), path, mode="create")
                else:
                    fs.pipe_file(path, content, mode="create")
            except OSError as error:
                if maybe_there(error) and self._fresh().exists(path):
                    return False
                raise
            return True
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            _write_durably(temporary, content)
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def read(self, ref: ObjectRef) -> bytes:
        """The object's bytes, checked against its digest."""
        data = self.read_unverified(ref.key)
        if sha256(data) != ref.sha256:
            raise StoreUnavailable(
                f"{self.uri}/{ref.key} has digest {sha256(data)[:12]}, published was {ref.sha256[:12]}.",
                next_step="The object was changed after it was published: restore it or start a new run.",
                ids=[ref.key],
            )
        return data

    def read_unverified(self, key: str) -> bytes:
        """The bytes under a key whose digest the caller does not know (an index, a summary)."""
        return self._told("read", key, lambda: bytes(self._location[0].cat_file(self.path(key))))  # type: ignore[arg-type]

    def read_json(self, ref_or_key: ObjectRef | str) -> Any:
        data = self.read_unverified(ref_or_key) if isinstance(ref_or_key, str) else self.read(ref_or_key)
        return json.loads(data)

    def exists(self, key: str) -> bool:
        return self._told("look up", key, lambda: self._fresh().exists(self.path(key)))

    def keys(self, prefix: str) -> list[str]:
        """All keys under a prefix folder, sorted; leftovers of unfinished local writes are not listed."""
        root = self._location[1]
        found = self._told("list", prefix, lambda: self._listed(self.path(prefix)))
        return sorted(p[len(root) + 1 :] for p in found if not p.rsplit("/", 1)[-1].startswith("."))

    def _listed(self, path: str) -> list[str]:
        fs = self._fresh()
        return list(fs.find(path)) if fs.exists(path) else []

    def listing(self, prefix: str) -> list[tuple[str, float, int]]:
        """(key, seconds since the epoch when it was written, bytes) of every object under a prefix folder, by key."""
        root = self._location[1]
        found = self._told("list", prefix, lambda: self._detailed(self.path(prefix)))
        return sorted((path[len(root) + 1 :], _written(about), about["size"]) for path, about in found.items())

    def _detailed(self, path: str) -> dict[str, dict[str, Any]]:
        fs = self._fresh()
        return fs.find(path, detail=True) if fs.exists(path) else {}  # type: ignore[return-value]

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, in this order; only upkeep does. Folders that are left empty go too."""
        fs, _ = self._location
        for key in keys:
            self._told("delete", key, lambda key=key: fs.rm_file(self.path(key)))
        if self.is_local:
            for folder in sorted({Path(self.path(key)).parent for key in keys}, reverse=True):
                _remove_empty(folder, Path(self._location[1]))

    def _fresh(self) -> fsspec.AbstractFileSystem:
        """The filesystem without what it remembers of earlier listings: other processes publish too."""
        fs, _ = self._location
        fs.invalidate_cache()
        return fs

    def probe(self) -> None:
        """Create, read back, conditional create and delete, before a run relies on it."""
        key, data = f".probe/{secrets.token_hex(8)}", secrets.token_bytes(16)
        self._told("write", key, lambda: self._create(key, data), PROBE_PATIENCE_SECONDS)
        if self.read_unverified(key) != data:
            raise StoreUnavailable(f"{self.uri} gives back other bytes than were written.", ids=[key])
        if self._told("write", key, lambda: self._create(key, b"second")):
            raise StoreUnavailable(
                f"{self.uri} let an object be overwritten: it ignores conditional creates.",
                next_step="Use a store that honours If-None-Match.",
            )
        self._told("delete", key, lambda: self._location[0].rm_file(self.path(key)))

    def _told(self, verb: str, key: str, work: Callable[[], Result], patience: float = PATIENCE_SECONDS) -> Result:
        """The result of `work`; what the filesystem raises is told as what could not be done to which key."""
        try:
            return work() if self.is_local else patiently(work, patience)
        except FanlineError:
            raise
        except Exception as cause:  # fsspec's filesystems raise what their client libraries do: botocore, ftplib, …
            what, next_step = in_words(self.uri, verb, key, cause)
            raise StoreUnavailable(what, next_step=next_step, ids=[key]) from cause
