"""What the stages need of an engine, wherever its server runs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from infra.megatron.weights import Receiver
    from infra.sglang.client import Client, MemoryPart


class ServingEngine(ABC):
    """SGLang: one server of this host (`SGLangEngine`), several of them (`Fleet`), or one on a node of a Ray cluster
    (`ClusterEngine`).

    `before_restart` is called when the old server has ended: the new one takes all its memory at once. `after_restart`
    is called when it is ready: it has the weights that it was started with again, and whoever pushed others has to
    push them again.
    """

    before_restart: Callable[[], None] | None = None
    after_restart: Callable[[], None] | None = None

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the server's process is there (it may still be starting)."""

    @property
    @abstractmethod
    def receivers(self) -> Sequence[Receiver]:
        """What trainer ranks hand weights to, one a server."""

    @abstractmethod
    def client(self, concurrency: int | None = None) -> Client:
        """A client for one event loop, to be used as `async with engine.client() as client`."""

    def settle(self) -> None:
        """Return when no request runs any more; those that a hook gave up on are ended.

        Raises:
            EngineUnavailable: it does not answer, or some request runs on.
        """
        if not self.released:  # without its memory nothing can run
            asyncio.run(self._settle())

    async def _settle(self) -> None:
        async with self.client(1) as client:
            await client.settle()

    @property
    def released(self) -> bool:
        """Whether weights and cache were given back, and not all of it was taken again."""
        return False

    def release(self) -> None:
        """Give the GPU's memory back, weights and cache. Requests that still run are ended."""
        raise NotImplementedError(f"{type(self).__name__} shares no GPU")

    def resume(self, part: MemoryPart) -> None:
        """Take memory again, of which the weights are undefined until they are pushed."""
        raise NotImplementedError(f"{type(self).__name__} shares no GPU")

    @abstractmethod
    def start(self) -> None:
        """Start the server; it may still be starting when this returns."""

    @abstractmethod
    def wait_ready(self) -> None:
        """Return when the server answers, or raise EngineUnavailable."""

    @abstractmethod
    def stop(self) -> None:
        """End the server and everything that it started."""

    def answers(self) -> bool:
        """Whether the server answers now."""
        return self.running

    def stop_lost(self) -> None:
        """End what a restart has to start anew."""
        self.stop()

    def restart(self) -> None:
        """Stop what is lost, start it again, wait until it answers and let `after_restart` do its part.

        Raises:
            EngineUnavailable: it did not come back.
        """
        self.stop_lost()
        if self.before_restart is not None:
            self.before_restart()
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
