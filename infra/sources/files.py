"""Rows of JSONL and Parquet files, local or on S3."""

import hashlib
import io
import json
from collections.abc import Iterator

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from infra.errors import ConfigurationError, DownloadFailed
from infra.sources.rows import Row, Rows
from infra.sources.uri import Uri


def read(source: Uri) -> Rows:
    """Rows of one file in the slice; the revision is the digest of its bytes.

    Raises:
        ConfigurationError: there is no such file, or it is neither JSONL nor Parquet.
        DownloadFailed: the bucket does not answer.
    """
    path = source.place if source.scheme == "file" else f"{source.scheme}://{source.place}"
    readers = {".jsonl": _jsonl, ".parquet": _parquet}
    suffix = next((s for s in readers if path.endswith(s)), None)
    if suffix is None:
        raise ConfigurationError(f"{path} is neither .jsonl nor .parquet.", ids=[path])
    data = _bytes(path)
    begin, end = source.rows.start or 0, source.rows.stop
    rows = [row for row in readers[suffix](path, data) if row.number >= begin and (end is None or row.number < end)]
    return Rows(revision=f"sha256:{hashlib.sha256(data).hexdigest()}", rows=rows)


def _bytes(path: str) -> bytes:
    try:
        fs, place = fsspec.core.url_to_fs(path)
        return fs.cat_file(place)
    except FileNotFoundError as cause:
        raise ConfigurationError(f"There is no data file {path}.", ids=[path]) from cause
    except OSError as cause:
        raise DownloadFailed(f"{path} can not be read: {type(cause).__name__}: {cause}.", ids=[path]) from cause


def _jsonl(path: str, data: bytes) -> Iterator[Row]:
    """Rows by line; empty lines are no rows. Line numbers count from 1, as editors do."""
    lines = ((line, text) for line, text in enumerate(data.split(b"\n"), start=1) if text.strip())
    for number, (line, text) in enumerate(lines):
        where = f"{path} line {line}"
        try:
            values = json.loads(text)
        except ValueError as cause:
            yield Row(number=number, where=where, values=None, fault=f"not JSON: {cause}")
            continue
        if isinstance(values, dict):
            yield Row(number=number, where=where, values=values)
        else:
            yield Row(number=number, where=where, values=None, fault=f"not a JSON object but {type(values).__name__}")


def _parquet(path: str, data: bytes) -> Iterator[Row]:
    try:
        table = pq.read_table(io.BytesIO(data))
    except pa.ArrowInvalid as cause:
        raise ConfigurationError(f"{path} is not a Parquet file: {cause}", ids=[path]) from cause
    for number, values in enumerate(table.to_pylist()):
        yield Row(number=number, where=f"{path} row {number}", values=values)
