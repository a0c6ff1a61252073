"""A time limit on code that may block or wait for ever: hooks are user code, and a check of one has to end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from infra.errors import ContractViolation

AGAIN_SECONDS = 1.0  # tasks that are ended may block too: the alarm comes again


class HookTooSlow(ContractViolation):
    """A hook did not end within the time limit of its check."""


class _TimeIsOver(KeyboardInterrupt):
    """Of this base class as hooks and event loops let it through: `except Exception` does not hold it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise HookTooSlow in this thread, which has to be the main one, when the time is over.

    An alarm signal ends a blocking call as well as an event loop that waits.
    """

    def over(_: int, frame: FrameType | None) -> None:
        raise _TimeIsOver

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    except _TimeIsOver:
        raise HookTooSlow(f"It did not end within {seconds:g} seconds.") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
