"""Repositories of the Hugging Face hub: resumed where a connection breaks, checked file by file against its digests."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
from huggingface_hub import DatasetInfo, HfApi, ModelInfo, errors, snapshot_download

from infra.errors import ConfigurationError, DownloadFailed, NotInCache
from infra.sources.digest import file_sha256
from infra.sources.uri import Uri

MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")  # nothing that is pickled, no code
DATA_FILES = ("*.parquet", "*.jsonl", "*.json", "*.csv", "README.md")
COMMIT = re.compile(r"[0-9a-f]{40}")
REFUSED_STATUS = range(400, 500)
TRY_AGAIN_STATUS = (408, 425, 429)


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository at a revision (branch, tag or commit). `kind` is `model` or `dataset`."""

    kind: str
    name: str
    revision: str

    @property
    def text(self) -> str:
        return f"{self.kind} {self.name}@{self.revision}"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Commit of a revision, and of each file `sha256:…` (large) or `blob:…` (git's own digest)."""

    commit: str
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A repository on this host: its folder and the commit it is at."""

    path: Path
    revision: str


def repository(source: Uri, *, kind: str) -> Repository:
    """The repository that `hf://owner/name@revision` or `hf://datasets/owner/name@revision` names; main by default.

    Raises:
        ConfigurationError: the name has another form.
    """
    place = source.place.removeprefix("datasets/") if kind == "dataset" else source.place
    name, _, revision = place.partition("@")
    if (
        not re.fullmatch(r"[\w.-]+/[\w.-]+", name)
        or name.startswith("datasets/")
        or (kind == "dataset") != (source.place.startswith("datasets/"))
    ):
        form = "hf://owner/name@revision" if kind == "model" else "hf://datasets/owner/name@revision"
        raise ConfigurationError(f"{source.text} is not of the form {form}.", ids=[source.text])
    return Repository(kind=kind, name=name, revision=revision or "main")


def fetch(repo: Repository, cache: Path, *, patterns: tuple[str, ...], endpoint: str | None, offline: bool) -> Snapshot:
    """A repository's files that match the patterns, each equal to what the hub published.

    A commit that is in the cache is taken from there without asking; a branch or tag is asked for unless offline.

    Raises:
        ConfigurationError: no such repository or revision, or no access to it.
        NotInCache: offline, and this revision was never fetched.
        DownloadFailed: the hub does not answer, or a file is not what the hub published (it is removed).
    """
    noted = _notes(cache, repo)
    fixed = COMMIT.fullmatch(repo.revision) is not None
    if noted.is_file() and (offline or fixed):
        listing = Listing(**json.loads(noted.read_text()))
    elif offline:
        raise NotInCache(
            f"The {repo.text} is not in the cache {cache}, and this host is offline.",
            next_step="Unset HF_HUB_OFFLINE once, or copy the cache from a host that has it.",
            ids=[repo.name],
        )
    else:
        listing = _listing(repo, endpoint)
    folder = _download(repo, listing, cache, patterns, endpoint, offline)
    _check(repo, listing, folder)
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(json.dumps({"commit": listing.commit, "files": listing.files}, sort_keys=True))
    return Snapshot(path=folder, revision=listing.commit)


def _notes(cache: Path, repo: Repository) -> Path:
    return cache / "hub-revisions" / f"{repo.kind}--{quote(repo.name, safe='')}@{quote(repo.revision, safe='')}.json"


def _listing(repo: Repository, endpoint: str | None) -> Listing:
    try:
        info = _info(HfApi(endpoint=endpoint), repo)
    except (errors.HfHubHTTPError, httpx.HTTPError, errors.OfflineModeIsEnabled) as cause:
        raise _in_words(repo, cause) from cause
    files = {f.rfilename: f"sha256:{f.lfs.sha256}" if f.lfs else f"blob:{f.blob_id}" for f in info.siblings or []}
    return Listing(commit=str(info.sha), files=files)


def _info(api: HfApi, repo: Repository) -> ModelInfo | DatasetInfo:
    ask = api.model_info if repo.kind == "model" else api.dataset_info
    return ask(repo.name, revision=repo.revision, files_metadata=True)


def _download(
    repo: Repository, listing: Listing, cache: Path, patterns: tuple[str, ...], endpoint: str | None, offline: bool
) -> Path:
    try:
        folder = snapshot_download(
            repo.name,
            repo_type=repo.kind,
            revision=listing.commit,
            cache_dir=cache / "hub",
            allow_patterns=list(patterns),
            endpoint=endpoint,
            local_files_only=offline,
        )
    except errors.LocalEntryNotFoundError as cause:
        kind = NotInCache if offline else DownloadFailed
        raise kind(f"The {repo.text} could not be fetched whole: {cause}", ids=[repo.name]) from cause
    except (errors.HfHubHTTPError, httpx.HTTPError, OSError) as cause:
        raise _in_words(repo, cause) from cause
    return Path(folder)


def _in_words(repo: Repository, cause: Exception) -> Exception:
    """A missing name is wrong configuration; what may be different the next time is a failed download."""
    if isinstance(cause, errors.RevisionNotFoundError):
        return ConfigurationError(
            f"The hub has {repo.kind} {repo.name}, but no revision {repo.revision!r} of it.",
            next_step="Give a branch, a tag or a full commit id.",
            ids=[repo.name, repo.revision],
        )
    if isinstance(cause, errors.RepositoryNotFoundError):
        return ConfigurationError(
            f"The hub has no {repo.kind} {repo.name}, or not for this user.",
            next_step="Check the name; for a private or gated repository log in with `hf auth login`.",
            ids=[repo.name],
        )
    status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else 0
    if status in REFUSED_STATUS and status not in TRY_AGAIN_STATUS:
        return ConfigurationError(f"The hub refuses the {repo.text}: {cause}", ids=[repo.name])
    return DownloadFailed(
        f"The {repo.text} could not be fetched: {type(cause).__name__}: {cause}.",
        next_step="What has arrived is kept: the next try goes on from there. HF_HUB_OFFLINE=1 uses the cache only.",
        ids=[repo.name],
    )


def _check(repo: Repository, listing: Listing, folder: Path) -> None:
    """Compare every file with the hub's digest: the hub's client compares sizes only."""
    wrong = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        published = listing.files.get(path.relative_to(folder).as_posix())
        found = f"sha256:{file_sha256(path)}" if str(published).startswith("sha256:") else f"blob:{git_blob_id(path)}"
        if found != published:
            wrong.append(f"{path.relative_to(folder)} has {found[:19]}, published was {str(published)[:19]}")
            path.resolve().unlink()
            path.unlink(missing_ok=True)
    if wrong:
        raise DownloadFailed(
            f"What landed of the {repo.text} is not what the hub published: {'; '.join(wrong)}.",
            next_step="The files were removed: run again to fetch them anew.",
            ids=[repo.name, *wrong],
        )


def git_blob_id(path: Path) -> str:
    """Git's digest of a file: SHA-1 over a header with its size, and its bytes."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
