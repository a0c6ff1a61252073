"""Rows of a data set on the hub: its files are fetched and checked, then read by `datasets` from this host's disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.errors import ConfigurationError
from infra.sources import hub
from infra.sources.host import Host
from infra.sources.rows import Row, Rows
from infra.sources.uri import Uri, nearest


def read(source: Uri, host: Host) -> Rows:
    """Rows of `hf://datasets/owner/name@revision?split=…&config=…`; split is train by default.

    Data files only: a repository's own code is neither fetched nor run.

    Raises:
        ConfigurationError: no such repository, revision, configuration or split, or files that do not fit together.
        DownloadFailed: see hub.fetch.
    """
    source.only_options("split", "config")
    repo = hub.repository(source, kind="dataset")
    snapshot = hub.fetch(repo, host.cache, patterns=hub.DATA_FILES, endpoint=host.endpoint, offline=host.offline)
    table = _load(source, snapshot.path, host.cache / "datasets")
    begin, end, _ = source.rows.indices(len(table))
    return Rows(revision=snapshot.revision, rows=list(_rows(repo.name, table, begin, end)))


def _load(source: Uri, folder: Path, cache: Path) -> Any:
    import datasets
    from datasets.exceptions import DatasetsError

    split = source.options.get("split", "train")
    try:
        found = datasets.load_dataset(str(folder), source.options.get("config"), cache_dir=str(cache))
    except (ValueError, OSError, DatasetsError) as cause:
        why = cause.__cause__ or cause
        raise ConfigurationError(f"{source.text} can not be read: {why}", ids=[source.text]) from cause
    if split not in found:
        raise ConfigurationError(
            f"{source.text} has no split {split!r}.", next_step=nearest(str(split), map(str, found))
        )
    return found[split]


def _rows(name: str, table: Any, begin: int, end: int) -> Iterator[Row]:
    for number in range(begin, end):
        yield Row(number=number, where=f"{name} row {number}", values=table[number])
