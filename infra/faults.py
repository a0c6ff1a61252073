"""Faults of a run as facts to report, instead of tracebacks that end it without a verdict."""

from types import TracebackType
from typing import Any

from prefect.logging import get_run_logger

from infra.errors import ConfigurationError, EngineUnavailable, FanlineError


def engine_was_lost(task: Any, run: Any, state: Any) -> bool:
    """Prefect's retry condition of stages that use the engine: what a hook or a number did wrong it does again."""
    return isinstance(state.result(raise_on_failure=False), EngineUnavailable)


class recorded_faults:
    """Context that keeps the first `FanlineError` raised inside it and goes on after the block.

    A `ConfigurationError` says that there is nothing to run; anything that is not a `FanlineError` is a bug of fanline
    itself: both are raised.
    """

    first: FanlineError | None = None

    def __enter__(self) -> "recorded_faults":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, FanlineError) or isinstance(error, ConfigurationError):
            return False
        self.first = error
        get_run_logger().error("%s: %s", type(error).__name__, error)
        return True
