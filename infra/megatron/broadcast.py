"""Weights to servers by a process group of their own (NCCL, on a CPU gloo): for engines on other GPUs or hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[reportPrivateImportUsage]

from infra.megatron.reports import PUSH_SECONDS
from infra.megatron.weights import LOAD, Named, Receiver, load_request, post, whole
from infra.sglang.address import ServerAddress
from infra.sglang.load_weights import BUFFER, broadcast_to, packed
from infra.sglang.weight_group import Membership, joined, sent


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
        self._group: Any = None
        self._made = 0

    def __call__(self, named: Named, receivers: Sequence[Receiver], version: str) -> None:
        """Broadcast every tensor to all receivers.

        Raises:
            EngineUnavailable: a server does not answer or refuses.
        """
        servers = [receiver for receiver in receivers if isinstance(receiver, ServerAddress)]
        assert len(servers) == len(receivers), "of a distributed sync each receiver is a server"
        if servers != self._servers:
            self._invite(servers)
        known, self._servers = self._servers, []  # a group that a push failed in is of no use any more
        try:
            for part, last in whole(named):
                self._broadcast(packed(part), known, version, last=last)
        except BaseException:
            if self.backend == "nccl" and self._group is not None:
                self._group.abort()  # its kernels would wait for the member that is gone, and the trainer for them
            raise
        self._servers = known

    def _invite(self, servers: list[ServerAddress]) -> None:
        """To a new group with these servers; one from before is forgotten, its members may be gone."""
        self._servers, self._group, self._made = servers, None, self._made + 1
        self._own = Membership(
            name=f"{self.run_id}-{self._made}",
            rank=0,
            members=1 + sum(server.ranks for server in servers),
            host=self.host,
            port=0,
            backend=self.backend,
            seconds=PUSH_SECONDS,
        )
        self._store = TCPStore(self.host, 0, None, is_master=True, wait_for_workers=False, timeout=self._own.limit)
        self._own = replace(self._own, port=self._store.port)

    def _broadcast(self, message: Named, servers: Sequence[ServerAddress], version: str, *, last: bool) -> None:
        asked, rank = [], 1
        for server in servers:
            members = [replace(self._own, rank=rank + k) for k in range(server.ranks)]
            messages = [broadcast_to(message, member) for member in members]
            asked.append((server, LOAD, load_request(messages, version, last=last)))
            rank += server.ranks
        _beside(asked, lambda: self._send(dict(message)[BUFFER]))

    def _send(self, buffer: Tensor) -> None:
        if self._group is None:
            self._group = joined(self._own, self._store)
        sent(buffer, self._group, self._own.limit)


def _beside(asked: Sequence[tuple[ServerAddress, str, Mapping[str, Any]]], own_part: Callable[[], None]) -> None:
    """Ask all servers while this rank does its part: each waits for the others.

    What a server says comes first: where one is gone, this rank's part fails too, and says less.
    """
    failed = None
    with ThreadPoolExecutor(max(len(asked), 1)) as threads:
        answers = [threads.submit(post, *request) for request in asked]
        try:
            own_part()
        except RuntimeError as error:
            failed = error
        for answer in answers:
            answer.result()
    if failed is not None:
        raise failed
