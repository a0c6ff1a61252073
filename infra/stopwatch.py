"""Seconds by stage, added up over the iterations of a run."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Wall-clock seconds by name. Example: with timer("training"): ..."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
