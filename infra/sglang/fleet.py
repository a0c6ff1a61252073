"""Several servers of one model as one engine: requests go to the one that has fewest of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from infra.sglang.serving import ServingEngine

if TYPE_CHECKING:
    from infra.megatron.weights import Receiver
    from infra.sglang.client import Client, Generation, MemoryPart


class FleetClient:
    """A client of several servers, for one event loop; each method raises what that of one server does."""

    def __init__(self, clients: Sequence[Client]):
        self.clients = list(clients)
        self._in_flight = [0] * len(self.clients)
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in self.clients:
            await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def generate(self, input_ids: Sequence[int], **how: Any) -> Generation:
        """As `EngineClient.generate`: equal arguments and weights give equal tokens, whichever server has them."""
        least = min(range(len(self.clients)), key=self._in_flight.__getitem__)
        self._in_flight[least] += 1
        try:
            return await self.clients[least].generate(input_ids, **how)
        finally:
            self._in_flight[least] -= 1

    async def prefill_log_probs(self, sequences: Sequence[tuple[Sequence[int], int]]) -> list[list[float]]:
        """As `EngineClient.prefill_log_probs`; the sequences are dealt out, so that every server answers for some.

        Server k gets those that data-parallel rank k + 1 answers for, not those of the rank that pushed into it: a
        replica that has gone astray would agree with itself.
        """
        count = len(self.clients)
        first = [(k + 1) % count for k in range(count)]
        answers = await self._each(lambda k, client: client.prefill_log_probs(sequences[first[k] :: count]))
        found: list[list[float]] = [[] for _ in sequences]
        for k, answer in enumerate(answers):
            found[first[k] :: count] = answer
        return found

    async def weight_version(self) -> str:
        """The version that all have, or else each one's, with commas between."""
        versions = await self._each(lambda _, client: client.weight_version())
        return ",".join(dict.fromkeys(versions))

    async def settle(self) -> None:
        """As `EngineClient.settle`, of all servers."""
        await self._each(lambda _, client: client.settle())

    async def _each(self, ask: Callable[[int, Client], Awaitable[Any]]) -> list[Any]:
        return list(await asyncio.gather(*(ask(k, client) for k, client in enumerate(self.clients))))


class Fleet(ServingEngine):
    """Servers that start and end together; of several, `restart` starts only those anew that do not answer."""

    def __init__(self, engines: Sequence[ServingEngine]):
        self.engines = list(engines)

    @property
    def running(self) -> bool:
        """Whether every server's process is there."""
        return all(engine.running for engine in self.engines)

    @property
    def receivers(self) -> list[Receiver]:
        """What trainer ranks hand weights to, one a server."""
        return [receiver for engine in self.engines for receiver in engine.receivers]

    def client(self, concurrency: int | None = None) -> FleetClient:
        """A client for one event loop; `concurrency` is of each server."""
        return FleetClient([engine.client(concurrency) for engine in self.engines])

    @property
    def released(self) -> bool:
        """Whether any server has given memory back and not taken all of it again."""
        return any(engine.released for engine in self.engines)

    def release(self) -> None:
        """As of one server, of all."""
        for engine in self.engines:
            engine.release()

    def resume(self, part: MemoryPart) -> None:
        """As of one server, of those that gave memory back: one that was started anew has it."""
        for engine in self.engines:
            if engine.released:
                engine.resume(part)

    def start(self) -> None:
        """Start all servers; they may still be starting when this returns."""
        for engine in self.engines:
            engine.start()

    def wait_ready(self) -> None:
        """Return when all answer, or raise EngineUnavailable."""
        for engine in self.engines:
            engine.wait_ready()

    def stop(self) -> None:
        """End all servers and everything that they started."""
        _stop(self.engines)

    def stop_lost(self) -> None:
        """End those that do not answer; all of them where each does, for some request failed on one."""
        lost = [engine for engine in self.engines if not engine.answers()]
        _stop(lost or self.engines)


def _stop(engines: Sequence[ServingEngine]) -> None:
    """Each of them in turn, whatever the stop of another one raises."""
    with contextlib.ExitStack() as all_of_them:
        for engine in reversed(engines):
            all_of_them.callback(engine.stop)
