import errno
import os
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


@pytest.fixture(params=["linked", "copied"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to publish: in reach of a link, or with every link from it refused as between two filesystems."""
    path = tmp_path / "state"
    path.write_bytes(b"state")
    link = os.link
    if request.param == "copied":

        def refused(source: Path, target: Path) -> None:
            if Path(source) == path:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            link(source, target)

        monkeypatch.setattr(os, "link", refused)
    return path


def test_a_published_file_outlives_its_source(store: ArtifactStore, file: Path):
    ref = store.publish_file("a/{digest}", file)
    file.unlink()
    assert store.read(ref) == b"state" and store.keys("a") == [ref.key]


def test_a_file_of_other_content_does_not_replace_an_object(store: ArtifactStore, file: Path):
    store.publish("a", b"first")
    with pytest.raises(AlreadyPublished):
        store.publish_file("a", file)
    assert store.read_unverified("a") == b"first" and file.read_bytes() == b"state"
    assert [p.name for p in Path(store.path("a")).parent.iterdir()] == ["a"]


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
