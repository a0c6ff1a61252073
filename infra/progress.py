"""One live line for long work: a bar on a terminal, a plain line now and then in a log file."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_LINE_EVERY_SECONDS = 10.0


@contextlib.contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that says how much is done by now.

    Args:
        description: what is being done, for a person.
        total: how much there is to do; None where that is not known.

    Example: with progress("rollouts, iteration 0", 16) as done: done(3)
    """
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            job = bar.add_task(description, total=total)
            yield lambda count: bar.update(job, completed=count)
        return
    started = last = time.monotonic()

    def line(count: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_LINE_EVERY_SECONDS:
            last = time.monotonic()
            print(f"{description}: {count} of {total or '?'}, {last - started:.0f} s", file=sys.stderr, flush=True)

    yield line
