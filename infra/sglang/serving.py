"""What the stages need of an engine, wherever its server runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from infra.megatron.weights import Receiver
    from infra.sglang.client import EngineClient


class ServingEngine(Protocol):
    """One SGLang server: of this host (`SGLangEngine`) or on a node of a Ray cluster (`ClusterEngine`)."""

    after_restart: Callable[[], None] | None

    @property
    def running(self) -> bool:
        """Whether the server's process is there (it may still be starting)."""
        ...

    @property
    def receiver(self) -> Receiver:
        """What a trainer rank hands weights to."""
        ...

    def client(self, concurrency: int | None = None) -> EngineClient:
        """A client for one event loop, to be used as `async with engine.client() as client`."""
        ...

    def wait_ready(self) -> None:
        """Return when the server answers, or raise EngineUnavailable."""
        ...

    def restart(self) -> None:
        """Start it again, wait until it answers and call `after_restart`, or raise EngineUnavailable."""
        ...

    def stop(self) -> None:
        """End the server and everything that it started."""
        ...
