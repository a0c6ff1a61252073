"""The artifact store on S3: two real servers, their bad moments, and what is said when they refuse."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.chaos.s3_server import BUCKET, READER, WRITER, SeaweedFS
from infra.errors import StoreUnavailable
from infra.store import AlreadyPublished, ArtifactStore
from tests.s3_servers import Front, S3Server, moto, seaweedfs, using

pytestmark = pytest.mark.s3
URI = f"s3://{BUCKET}/nightly"


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with seaweedfs(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture(scope="module")
def moto_server() -> Iterator[S3Server]:
    with moto() as server:
        yield server


@pytest.fixture(params=["moto", "seaweedfs"])
def store(request: pytest.FixtureRequest) -> Iterator[ArtifactStore]:
    server = request.getfixturevalue("moto_server" if request.param == "moto" else "weed")
    with using(server.environment):
        yield ArtifactStore(f"{URI}/{request.node.name}")


@pytest.fixture
def front(moto_server: S3Server) -> Iterator[Front]:
    front = Front(moto_server)
    with using(front.server.environment):
        yield front
    front.close()


def test_s3_keeps_the_promises_of_a_folder(store: ArtifactStore):
    store.probe()
    assert store.keys(".probe") == []
    ref = store.publish("a/b.bin", b"first")
    assert store.read(ref) == b"first" and store.keys("a") == ["a/b.bin"]
    assert store.publish("a/b.bin", b"first") == ref
    with pytest.raises(AlreadyPublished):
        store.publish("a/b.bin", b"second")
    assert store.exists("a/b.bin") and not store.exists("a/c.bin") and store.keys("nothing") == []


def test_of_many_that_publish_under_one_key_one_wins(store: ArtifactStore):
    def attempt(number: int) -> bool:
        try:
            store.publish("verdict.json", f"{number}".encode())
        except AlreadyPublished:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


def test_a_large_file_goes_up_in_parts_and_is_created_once(weed: SeaweedFS, tmp_path: Path):
    large = tmp_path / "weights.safetensors"
    large.write_bytes(os.urandom(2**20) * 101)
    with using(weed.environment):
        store = ArtifactStore(URI)
        ref = store.publish_file("weights-{digest}", large)
        assert store.publish_file("weights-{digest}", large) == ref
        (tmp_path / "other").write_bytes(b"x" * (101 * 2**20))
        with pytest.raises(AlreadyPublished):
            store.publish_file(ref.key, tmp_path / "other")
        assert len(store.read(ref)) == 101 * 2**20


@pytest.mark.parametrize(("method", "code"), [("PUT", "SlowDown"), ("GET", "InternalError"), ("HEAD", "InternalError")])
def test_a_bad_moment_of_the_server_is_waited_for(front: Front, code: str, method: str):
    store = ArtifactStore(f"{URI}/{code}-{method}")
    front.moments += [(method, code)] * 2
    ref = store.publish("a", b"bytes")
    assert store.read(ref) == b"bytes" and store.exists("a") and store.keys("") == ["a"]
    assert front.moments == []


def test_a_create_whose_answer_was_lost_is_not_another_ones(front: Front, moto_server: S3Server):
    """The server has created the object and says that it failed: tried again, it is there, with the same bytes."""
    with using(moto_server.environment):
        ArtifactStore(f"{URI}/lost").publish("a", b"bytes")
    with using(front.server.environment):
        front.moments += [("PUT", "InternalError")]
        ArtifactStore(f"{URI}/lost").publish("a", b"bytes")
        front.moments += [("PUT", "InternalError")]
        with pytest.raises(AlreadyPublished):
            ArtifactStore(f"{URI}/lost").publish("a", b"other bytes")


def test_a_server_that_is_restarted_is_waited_for(weed: SeaweedFS):
    with using(weed.environment):
        store = ArtifactStore(f"{URI}/restart")
        before = store.publish("before", b"kept")
        weed.kill()
        started = threading.Thread(target=lambda: store.publish("during", b"late"))
        started.start()
        time.sleep(1)
        weed.start()
        started.join(120)
        assert not started.is_alive()
        assert store.read(before) == b"kept" and store.keys("") == ["before", "during"]


def test_a_bucket_that_refuses_writes_is_said_at_once_and_takes_them_again_later(weed: SeaweedFS):
    with using(weed.environment):
        store = ArtifactStore(f"{URI}/refuses")
        before = store.publish("before", b"kept")
        weed.refuse_writes()
        try:
            with pytest.raises(StoreUnavailable, match="does not let this process write"):
                store.publish("during", b"late")
            assert store.read(before) == b"kept"
        finally:
            weed.allow_writes()
        store.publish("during", b"late")
        assert store.keys("") == ["before", "during"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (READER, "does not let this process write"),
        ({**WRITER, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}, "does not accept this process's credentials"),
        ({"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "x"}, "does not accept this process's credentials"),
    ],
    ids=["read-only", "wrong secret", "unknown key"],
)
def test_wrong_credentials_are_said_and_not_shown(weed: SeaweedFS, keys: dict[str, str], words: str, caplog):
    caplog.set_level("DEBUG")
    with using({**weed.environment, **keys}), pytest.raises(StoreUnavailable, match=words) as said:
        ArtifactStore(URI).probe()
    assert "credentials" in str(said.value)
    assert keys["AWS_SECRET_ACCESS_KEY"] not in str(said.value)
    assert not [r for r in caplog.records if r.name.startswith("infra") and keys["AWS_SECRET_ACCESS_KEY"] in r.message]


def test_a_missing_bucket_is_said(moto_server: S3Server):
    with using(moto_server.environment), pytest.raises(StoreUnavailable, match="There is no bucket nowhere"):
        ArtifactStore("s3://nowhere/x").probe()


def test_a_clock_that_is_wrong_is_said_at_once(front: Front):
    front.moments += [("PUT", "RequestTimeTooSkewed")]
    with pytest.raises(StoreUnavailable, match=r"clocks of this host and of the artifact store .* differ"):
        ArtifactStore(f"{URI}/skewed").publish("a", b"bytes")
    assert front.moments == []


def test_a_store_that_refuses_writes_from_now_on_says_so_and_reads_on(front: Front):
    store = ArtifactStore(f"{URI}/refuses")
    ref = store.publish("before", b"bytes")
    front.moments += [("PUT", "AccessDenied")]
    with pytest.raises(StoreUnavailable, match="does not let this process write after"):
        store.publish("after", b"bytes")
    assert store.read(ref) == b"bytes"


def test_no_server_at_all_is_said(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("infra.store.PROBE_PATIENCE_SECONDS", 1.0)
    nobody = {**moto_server.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with using(nobody), pytest.raises(StoreUnavailable, match="does not answer"):
        ArtifactStore(URI).probe()
