import multiprocessing
from pathlib import Path

import pytest

from infra.sources.cache import cached_folder


def test_a_folder_is_made_once(tmp_path):
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("x")

    assert cached_folder(tmp_path, "kind/key", make) == cached_folder(tmp_path, "kind/key", make)
    assert len(made) == 1


def test_what_fails_half_way_leaves_nothing_and_can_be_tried_again(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        cached_folder(tmp_path, "key", fail)
    (tmp_path / ".key.left-by-a-killed-process").mkdir()
    folder = cached_folder(tmp_path, "key", lambda folder: None)
    assert not list(folder.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"key", "key.lock"}


def make_slowly(folder: Path) -> None:
    with (folder.parent.parent / "made").open("a") as log:
        log.write("once\n")


def take(cache: Path) -> None:
    cached_folder(cache, "key", make_slowly)


def test_two_processes_that_want_the_same_folder_make_it_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=take, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "made").read_text() == "once\n"
