"""Folders that are made once, whole or not at all, also when two processes want them at the same time."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cached_folder(cache: Path, key: str, make: Callable[[Path], None]) -> Path:
    """The folder `cache/key`; where there is none yet, `make` fills one under a temporary name, which is then renamed.

    Args:
        key: names what is inside, by its digest or exact version: a cached folder is never made anew.
        make: is given an empty folder. What it raises leaves nothing behind.
    """
    target = cache / key
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.is_dir():
            for left in target.parent.glob(f".{target.name}.*/"):
                shutil.rmtree(left)  # by a process that was killed: nobody else is here while the lock is held
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                make(made)
                made.rename(target)
    return target
