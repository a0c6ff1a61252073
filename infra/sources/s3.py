"""Model folders in a bucket."""

from pathlib import Path

import fsspec

from infra.errors import ConfigurationError, DownloadFailed
from infra.sources.cache import cached_folder
from infra.sources.hub import MODEL_FILES
from infra.store import canonical_json, sha256


def fetch_folder(uri: str, cache: Path) -> tuple[Path, str]:
    """Folder on this host and revision (digest over names, sizes and ETags) of a model in a bucket.

    Raises:
        ConfigurationError: there is nothing that belongs to a model.
        DownloadFailed: the bucket does not answer.
    """
    try:
        fs, root = fsspec.core.url_to_fs(uri)
        fs.invalidate_cache()
        found = fs.find(root, detail=True)
        files = {path: about for path, about in sorted(found.items()) if _wanted(path)}
        if not files:
            raise ConfigurationError(f"There is no model under {uri}.", ids=[uri])
        revision = sha256(canonical_json([[path, about["size"], about.get("ETag")] for path, about in files.items()]))
        return cached_folder(cache, f"s3/{revision[:32]}", lambda folder: _get(fs, root, files, folder)), revision[:32]
    except OSError as cause:
        raise DownloadFailed(f"{uri} can not be read: {type(cause).__name__}: {cause}.", ids=[uri]) from cause


def _wanted(path: str) -> bool:
    return any(Path(path).match(pattern) for pattern in MODEL_FILES)


def _get(fs: fsspec.AbstractFileSystem, root: str, files: dict, folder: Path) -> None:
    for path, about in files.items():
        target = folder / path.removeprefix(f"{root}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        fs.get_file(path, str(target))
        if target.stat().st_size != about["size"]:
            raise OSError(f"{path} came with {target.stat().st_size} bytes instead of {about['size']}")
