"""Models in a local folder and in a bucket."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import s3fs

from infra.errors import ConfigurationError, DownloadFailed
from infra.sources.embedded.model import HERE
from infra.sources.host import Host
from infra.sources.model import fetch_model, on_this_host
from tests.s3_servers import moto, using

TINY = HERE / "tiny"


def test_a_local_folder_is_used_where_it_is(tmp_path):
    folder = shutil.copytree(TINY, tmp_path / "model")
    model = fetch_model(str(folder), Host(cache=tmp_path / "cache"))
    assert model.path == folder
    assert model.digest == fetch_model("embedded://tiny", Host(cache=tmp_path)).digest
    (folder / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes()[:-1] + b"\1")
    assert fetch_model(str(folder), Host(cache=tmp_path / "cache")).digest != model.digest


def test_a_host_that_lacks_the_model_fetches_it_and_takes_no_other(tmp_path):
    """As a node of a cluster does, for a run that was begun on another host."""
    model = fetch_model("embedded://tiny", Host(cache=tmp_path))
    assert on_this_host(model) is model
    other = shutil.copytree(TINY, tmp_path / "same path, other weights")
    (other / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes()[:-1] + b"\1")
    assert on_this_host(replace(model, path=other)) == model
    elsewhere = replace(model, path=tmp_path / "path of another host")
    assert on_this_host(elsewhere) == model
    with pytest.raises(ConfigurationError, match=r"embedded://tiny is revision .* where the run was started"):
        on_this_host(replace(elsewhere, digest="0" * 64))


def test_what_is_no_model_folder_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="There is no model folder"):
        fetch_model(str(tmp_path / "none"), Host(cache=tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(ConfigurationError, match="pickled and never read"):
        fetch_model(str(tmp_path), Host(cache=tmp_path))


def test_a_model_has_no_rows(tmp_path):
    with pytest.raises(ConfigurationError, match="no rows to take a slice of"):
        fetch_model("embedded://tiny@[0:1]", Host(cache=tmp_path))


@pytest.fixture
def bucket() -> Iterator[str]:
    with moto() as server, using(server.environment):
        fs = s3fs.S3FileSystem()
        fs.mkdir("models")
        fs.put(str(TINY), "models/tiny", recursive=True)
        yield "s3://models"


@pytest.mark.s3
def test_a_model_in_a_bucket_is_fetched_once(bucket, tmp_path: Path):
    host = Host(cache=tmp_path)
    model = fetch_model(f"{bucket}/tiny", host)
    assert model.digest == fetch_model("embedded://tiny", host).digest
    assert fetch_model(f"{bucket}/tiny", host) == model
    assert model.path.is_relative_to(tmp_path)
    with pytest.raises(ConfigurationError, match="There is no model under"):
        fetch_model(f"{bucket}/none", host)
    with pytest.raises((ConfigurationError, DownloadFailed)):
        fetch_model("s3://no-such-bucket/tiny", host)
