"""Several servers as one engine: where requests go, and what a restart touches."""

import asyncio
from typing import Any

import pytest

from infra.sglang.fleet import Fleet, FleetClient
from infra.sglang.serving import ServingEngine


class Client:
    def __init__(self, name: str, version: str = "1"):
        self.name, self.version, self.open = name, version, 0
        self.go = asyncio.Event()
        self.asked: list[float] = []
        self.settled = False

    async def __aenter__(self) -> "Client":
        self.open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open -= 1

    async def generate(self, input_ids: list[int], **how: Any) -> Any:
        if input_ids == [0]:
            raise ConnectionError(self.name)
        await self.go.wait()
        return self.name

    async def prefill_log_probs(self, sequences: list[tuple[list[int], int]]) -> list[list[float]]:
        self.asked += [tokens[0] for tokens, _ in sequences]
        return [[float(tokens[0])] for tokens, _ in sequences]

    async def weight_version(self) -> str:
        return self.version

    async def settle(self) -> None:
        self.settled = True


def test_a_request_goes_to_the_server_that_has_fewest():
    async def look() -> None:
        clients: Any = [Client("a"), Client("b"), Client("c")]
        async with FleetClient(clients) as fleet:
            asked = [asyncio.create_task(fleet.generate([1])) for _ in range(5)]
            await asyncio.sleep(0)
            clients[1].go.set()
            await asyncio.sleep(0.01)
            asked += [asyncio.create_task(fleet.generate([1])) for _ in range(2)]  # b has none left: both are its own
            for client in clients:
                client.go.set()
            assert [await task for task in asked] == ["a", "b", "c", "a", "b", "b", "b"]
            assert all(client.open == 1 for client in clients)
        assert all(client.open == 0 for client in clients)

    asyncio.run(look())


def test_a_request_that_failed_is_no_longer_counted():
    async def look() -> None:
        clients: Any = [Client("a"), Client("b")]
        async with FleetClient(clients) as fleet:
            for client in clients:
                client.go.set()
            for _ in range(3):
                try:
                    await fleet.generate([0])
                except ConnectionError as error:
                    assert str(error) == "a"

    asyncio.run(look())


def test_every_server_answers_for_some_of_the_sequences_and_for_its_version():
    async def look() -> None:
        clients: Any = [Client("a"), Client("b")]
        async with FleetClient(clients) as fleet:
            assert await fleet.prefill_log_probs([([n], 1) for n in range(5)]) == [[float(n)] for n in range(5)]
            # Row n is the trainer's rank n modulo 2, which pushed into the other server.
            assert (clients[0].asked, clients[1].asked) == ([1, 3], [0, 2, 4])
            assert await fleet.prefill_log_probs([([7], 1)]) == [[7.0]]
            assert await fleet.weight_version() == "1"
            clients[1].version = "0"
            assert await fleet.weight_version() == "1,0"
            await fleet.settle()
            assert all(client.settled for client in clients)

    asyncio.run(look())


class Server(ServingEngine):
    def __init__(self, name: str, done: list[str]):
        self.name, self.done, self.alive, self.given = name, done, True, False

    @property
    def running(self) -> bool:
        return self.alive

    @property
    def receivers(self) -> Any:
        return (self.name,)

    @property
    def released(self) -> bool:
        return self.given

    def client(self, concurrency: int | None = None) -> Any:
        return Client(self.name)

    def start(self) -> None:
        if not self.alive:
            self.done.append(f"start {self.name}")
        self.alive, self.given = True, False

    def wait_ready(self) -> None:
        pass

    def stop(self) -> None:
        self.done.append(f"stop {self.name}")
        self.alive = False

    def release(self) -> None:
        self.given = True

    def resume(self, part: Any) -> None:
        self.done.append(f"resume {part} {self.name}")


def test_a_restart_starts_what_is_lost_and_all_where_nothing_is():
    done: list[str] = []
    servers = [Server("a", done), Server("b", done)]
    fleet = Fleet(servers)
    fleet.before_restart, fleet.after_restart = lambda: done.append("before"), lambda: done.append("after")
    servers[1].alive = False
    assert not fleet.running
    fleet.restart()
    assert done == ["stop b", "before", "start b", "after"] and fleet.running
    done.clear()
    fleet.restart()
    assert done == ["stop a", "stop b", "before", "start a", "start b", "after"]


def test_only_servers_that_gave_memory_back_take_it_again():
    done: list[str] = []
    servers = [Server("a", done), Server("b", done)]
    fleet = Fleet(servers)
    fleet.release()
    assert fleet.released and fleet.receivers == ["a", "b"]
    servers[0].given = False  # it was started anew meanwhile
    fleet.resume("weights")
    assert done == ["resume weights b"]


def test_all_servers_are_ended_whatever_the_end_of_one_raises():
    class Stubborn(Server):
        def stop(self) -> None:
            raise TimeoutError(self.name)

    done: list[str] = []
    with pytest.raises(TimeoutError, match="b"):
        Fleet([Server("a", done), Stubborn("b", done), Server("c", done)]).stop()
    assert sorted(done) == ["stop a", "stop c"]
