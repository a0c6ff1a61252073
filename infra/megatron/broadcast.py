"""Weights to servers by a process group of their own (NCCL, on a CPU gloo): for engines on other GPUs or hosts."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[reportPrivateImportUsage]

from infra.errors import EngineUnavailable
from infra.megatron.reports import PUSH_SECONDS
from infra.megatron.weights import LOAD, Named, Receiver, load_request, post, whole
from infra.sglang.address import ServerAddress
from infra.sglang.load_weights import by_broadcast, message, packed
from infra.sglang.weight_group import Membership, WeightGroup


class Broadcast:
    """A transport of `push`: this rank is the group's first member, each GPU of the servers is a further one.

    The group is made with the first push and kept; servers that were started anew get a new one.

    Args:
        host: under which the servers reach this process.
        run_id: names the group.
    """

    def __init__(self, host: str, backend: str, run_id: str):
        self.host, self.backend, self.run_id = host, backend, run_id
        self._servers: list[ServerAddress] = []
        self._group: WeightGroup | None = None
        self._sent = 0

    def __call__(self, named: Named, receivers: Sequence[Receiver], version: str) -> None:
        """Broadcast every tensor to all receivers.

        Raises:
            EngineUnavailable: a server does not answer or refuses.
        """
        servers = [receiver for receiver in receivers if isinstance(receiver, ServerAddress)]
        assert len(servers) == len(receivers), "of a distributed sync each receiver is a server"
        if self._group is None or servers != self._servers:
            self._group, self._servers = self._new_group(servers), servers
        group, self._group = self._group, None  # one that a push failed in is of no use any more
        for part, last in whole(named):
            self._broadcast(group, part, version if last else None)
        self._group = group

    def _new_group(self, servers: Sequence[ServerAddress]) -> WeightGroup:
        limit = datetime.timedelta(seconds=PUSH_SECONDS)
        store = TCPStore(self.host, 0, None, is_master=True, wait_for_workers=False, timeout=limit)
        own = Membership(
            name=f"{self.run_id}-{secrets.token_hex(4)}",
            rank=0,
            members=1 + sum(server.ranks for server in servers),
            host=self.host,
            port=store.port,
            backend=self.backend,
            seconds=PUSH_SECONDS,
        )
        return WeightGroup(own, store)

    def _broadcast(self, group: WeightGroup, part: Named, version: str | None) -> None:
        self._sent += 1
        contents, buffer = packed(part)
        asked, rank = [], 1
        for server in self._servers:
            members = [replace(group.own, rank=rank + k) for k in range(server.ranks)]
            messages = [message(by_broadcast(contents, len(buffer), member, self._sent)) for member in members]
            asked.append((server, load_request(messages, version)))
            rank += server.ranks
        with ThreadPoolExecutor(max(len(asked), 1)) as threads:
            answers = [threads.submit(post, server, LOAD, request) for server, request in asked]
            _beside(answers, group, self._sent, buffer)


def _beside(answers: Sequence[Future[None]], group: WeightGroup, number: int, buffer: Tensor) -> None:
    """Broadcast while the servers are asked: each member waits for all others.

    What a server said first comes first: where one is gone, the other members fail too, and say less.
    """
    failed: list[BaseException] = []

    def look(answer: Future[None]) -> None:
        if (error := answer.exception()) is not None:
            failed.append(error)
            group.abort()

    for answer in answers:
        answer.add_done_callback(look)
    own: Exception | None = None
    try:
        if group.begin(number, lambda: bool(failed)):
            group.broadcast(buffer)
        else:  # a server that is ready too late answers well, and has the weights of before
            own = EngineUnavailable(
                f"Not every server was ready for its weights within {group.own.seconds:g} s.",
                next_step="See the engines' logs.",
                ids=[group.own.name],
            )
    except RuntimeError as error:
        own = error
    for answer in answers:
        answer.exception()  # waits for it
    if failed:
        raise failed[0]
    if own is not None:
        raise own
