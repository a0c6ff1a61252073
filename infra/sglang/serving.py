"""What the stages need of an engine, wherever its server runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from infra.megatron.weights import Receiver
    from infra.sglang.client import EngineClient


class ServingEngine(ABC):
    """One SGLang server: of this host (`SGLangEngine`) or on a node of a Ray cluster (`ClusterEngine`).

    `after_restart` is called when a restarted server is ready: it has the weights that it was started with again, and
    whoever pushed others has to push them again.
    """

    after_restart: Callable[[], None] | None = None

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the server's process is there (it may still be starting)."""

    @property
    @abstractmethod
    def receiver(self) -> Receiver:
        """What a trainer rank hands weights to."""

    @abstractmethod
    def client(self, concurrency: int | None = None) -> EngineClient:
        """A client for one event loop, to be used as `async with engine.client() as client`."""

    @abstractmethod
    def start(self) -> None:
        """Start the server; it may still be starting when this returns."""

    @abstractmethod
    def wait_ready(self) -> None:
        """Return when the server answers, or raise EngineUnavailable."""

    @abstractmethod
    def stop(self) -> None:
        """End the server and everything that it started."""

    def restart(self) -> None:
        """Stop what is left of the server, start it again, wait until it answers and let `after_restart` do its part.

        Raises:
            EngineUnavailable: it did not come back.
        """
        self.stop()
        self.start()
        self.wait_ready()
        if self.after_restart is not None:
            self.after_restart()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()  # whoever has not entered does not leave
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
