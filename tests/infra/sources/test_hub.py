"""Downloads from a hub on the loopback address, through the hub's own client."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from infra.errors import ConfigurationError, DownloadFailed, NotInCache
from infra.sources.data import read_data
from infra.sources.embedded.model import HERE
from infra.sources.host import Host
from infra.sources.model import fetch_model
from tests.loopback_hub import LoopbackHub, loopback_hub

pytestmark = pytest.mark.hub

MODEL = "models/someone/tiny"
DATA = "datasets/someone/sums"
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    model = {path.name: path.read_bytes() for path in (HERE / "tiny").iterdir()}
    rows = [{"question": f"{i}+{i}=", "answer": str(2 * i)} for i in range(40)]
    data = {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()}
    repositories = {MODEL: {**model, "pytorch_model.bin": b"pickled", "run_me.py": b"raise SystemExit"}, DATA: data}
    with loopback_hub(repositories) as running:
        yield running


@pytest.fixture
def host(hub: LoopbackHub, tmp_path: Path) -> Host:
    return Host(cache=tmp_path / "cache", endpoint=hub.url)


def test_a_model_names_the_commit_it_got_and_comes_without_code_and_pickles(hub: LoopbackHub, host: Host):
    model = fetch_model("hf://someone/tiny", host)
    assert model.revision == hub.commit(MODEL)
    assert model.parameters == 377_984
    assert not [path for path in model.path.iterdir() if path.suffix in (".bin", ".py")]
    assert fetch_model(f"hf://someone/tiny@{model.revision}", host).digest == model.digest


def test_a_cut_connection_is_resumed_where_it_broke(hub: LoopbackHub, host: Host):
    hub.repositories[MODEL][WEIGHTS] = save({"weight": np.arange(4 << 20, dtype=np.float32)})
    hub.cut[WEIGHTS] = 12 << 20  # the client keeps what it has got in whole pieces of 10 MiB
    model = fetch_model("hf://someone/tiny@main", host)
    assert hub.ranges_of(WEIGHTS) == [None, f"bytes={10 << 20}-"]
    assert (model.path / WEIGHTS).read_bytes() == hub.repositories[MODEL][WEIGHTS]


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_other_bytes_of_the_same_length_are_caught_and_removed(hub: LoopbackHub, host: Host, name: str):
    hub.corrupt.add(name)
    with pytest.raises(DownloadFailed, match=f"{name} has (sha256|blob):0*.*published was"):
        fetch_model("hf://someone/tiny", host)
    assert not list(host.cache.rglob(f"snapshots/*/{name}"))
    hub.corrupt.clear()
    assert fetch_model("hf://someone/tiny", host).parameters == 377_984


def test_a_missing_revision_and_a_missing_repository_are_said_in_words(host: Host):
    with pytest.raises(ConfigurationError, match="no revision 'v9' of it"):
        fetch_model("hf://someone/tiny@v9", host)
    with pytest.raises(ConfigurationError, match="no model someone/small"):
        fetch_model("hf://someone/small", host)


def test_offline_takes_the_cache_and_says_so_where_it_has_nothing(host: Host):
    offline = Host(cache=host.cache, endpoint="http://127.0.0.1:9", offline=True)
    with pytest.raises(NotInCache, match="not in the cache"):
        fetch_model("hf://someone/tiny", offline)
    online = fetch_model("hf://someone/tiny", host)
    assert fetch_model("hf://someone/tiny", offline) == online


def test_a_file_that_was_changed_in_the_cache_is_caught_offline_too(host: Host):
    model = fetch_model("hf://someone/tiny", host)
    blob = (model.path / WEIGHTS).resolve()
    blob.write_bytes(bytes(blob.stat().st_size))
    with pytest.raises(DownloadFailed, match="not what the hub published"):
        fetch_model("hf://someone/tiny", Host(cache=host.cache, offline=True))


def test_a_hub_that_does_not_answer_is_a_failed_download(tmp_path: Path):
    with pytest.raises(DownloadFailed, match="could not be fetched"):
        fetch_model("hf://someone/tiny", Host(cache=tmp_path, endpoint="http://127.0.0.1:9"))


def test_a_data_set_over_the_hub_and_its_slice(hub: LoopbackHub, host: Host):
    rows = read_data("hf://datasets/someone/sums@main@[3:6]", host)
    assert rows.revision == hub.commit(DATA)
    assert [(row.number, row.values["answer"]) for row in rows.rows if row.values] == [(3, "6"), (4, "8"), (5, "10")]
    shutil.rmtree(host.cache / "datasets")
    assert read_data("hf://datasets/someone/sums", Host(cache=host.cache, offline=True)).revision == rows.revision


def test_a_split_that_is_not_there_is_said_with_those_that_are(host: Host):
    with pytest.raises(ConfigurationError, match=r"no split 'test'\. Known: train"):
        read_data("hf://datasets/someone/sums?split=test", host)
