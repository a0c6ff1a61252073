from pathlib import Path

import pytest

from infra.errors import StoreUnavailable
from infra.store import AlreadyPublished, ArtifactStore, canonical_json


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


def test_an_object_comes_back_as_it_was_published(store: ArtifactStore):
    ref = store.publish("a/b.bin", b"bytes")
    assert store.read(ref) == b"bytes" and store.exists("a/b.bin") and not store.exists("a/c.bin")
    assert store.keys("a") == ["a/b.bin"]


def test_a_published_object_is_never_overwritten(store: ArtifactStore):
    store.publish("a", b"first")
    store.publish("a", b"first")
    with pytest.raises(AlreadyPublished, match="a was published before"):
        store.publish("a", b"second")
    assert store.read_unverified("a") == b"first"


def test_an_object_changed_behind_our_back_is_refused(store: ArtifactStore):
    ref = store.publish("a", b"first")
    Path(store.path("a")).write_bytes(b"first?")
    with pytest.raises(StoreUnavailable, match="digest"):
        store.read(ref)


def test_a_missing_object_is_said_by_key(store: ArtifactStore):
    with pytest.raises(StoreUnavailable, match="runs/x"):
        store.read_unverified("runs/x")


def test_a_probe_leaves_nothing(store: ArtifactStore):
    store.probe()
    assert store.keys(".probe") == []


def test_a_store_that_can_not_be_written_says_so(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable, match="can not write"):
        ArtifactStore(str(tmp_path / "file")).probe()


def test_an_unfinished_write_is_not_an_object(store: ArtifactStore):
    store.publish("a/b", b"x")
    Path(store.path("a/.b.1.tmp")).write_bytes(b"half")
    assert store.keys("a") == ["a/b"]


def test_json_has_one_spelling_and_no_nan():
    assert canonical_json({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'.encode()
    with pytest.raises(ValueError):
        canonical_json(float("nan"))
