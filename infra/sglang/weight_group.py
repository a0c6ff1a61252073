"""A group that weights are broadcast in: the trainer is member 0, each GPU of each server a further one.

Before each broadcast the members say in a key-value store that they are ready, and the trainer says whether it begins.
A server that refused or is gone thus keeps nobody waiting in a collective, and costs the other servers nothing.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[reportPrivateImportUsage]

LOOK_SECONDS = 0.001
GOES, STAYS = "goes", "stays"


@dataclass(frozen=True)
class Membership:
    """Which member of which group somebody is, and where the group's members meet.

    Args:
        backend: `nccl` or `gloo`.
        seconds: longest that a member waits for the others.
    """

    name: str
    rank: int
    members: int
    host: str
    port: int
    backend: str
    seconds: float

    @property
    def limit(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.seconds)


class WeightGroup:
    """One member of the group; its communicator is made with the first broadcast."""

    def __init__(self, own: Membership, store: TCPStore):
        self.own, self._store = own, PrefixStore(own.name, store)
        self._backend: Any = None

    def broadcast(self, buffer: Tensor) -> None:
        """Member 0's buffer goes to all others; returns when it is there.

        Raises:
            RuntimeError: a member is gone or too late.
        """
        if self._backend is None:
            self._backend = self._made_backend()
        self._backend.broadcast([buffer], dist.BroadcastOptions()).wait(self.own.limit)

    def begin(self, number: int, failed: Callable[[], bool]) -> bool:
        """Of member 0: wait until all others are ready for a broadcast, and tell them whether it begins.

        It does not where something failed meanwhile or they take too long.
        """
        others = [self._ready(number, rank) for rank in range(1, self.own.members)]
        deadline = time.monotonic() + self.own.seconds
        while not (there := self._store.check(others)) and not failed() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self._store.set(f"{number}", GOES if there else STAYS)
        return there

    def wait_for_begin(self, number: int) -> bool:
        """Of the others: say that this member is ready; whether the broadcast begins."""
        self._store.set(self._ready(number, self.own.rank), "")
        return self._store.get(f"{number}").decode() == GOES

    def abort(self) -> None:
        """End a broadcast that waits for a member that is gone; on NCCL its kernels would wait on."""
        if self._backend is not None and self.own.backend == "nccl":
            self._backend.abort()

    def _ready(self, number: int, rank: int) -> str:
        return f"{number} ready {rank}"

    def _made_backend(self) -> Any:
        store, rank, members = PrefixStore("members", self._store), self.own.rank, self.own.members
        if self.own.backend == "gloo":
            return dist.ProcessGroupGloo(store, rank, members, timeout=self.own.limit)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = 2 * self.own.limit  # PyTorch ends a process whose collective is over it: `wait` comes first
        return dist.ProcessGroupNCCL(store, rank, members, options)


_joined: WeightGroup | None = None  # of this server


def received(member: Membership, number: int, size: int, device: torch.device) -> Tensor | None:
    """The bytes [size] of broadcast `number`, or None where it does not take place.

    A server stays in its group until it is told of another one.
    """
    global _joined  # SGLang calls a function, and gives it nothing to keep things in
    if _joined is None or _joined.own != member:
        store = TCPStore(member.host, member.port, None, is_master=False, timeout=member.limit)
        _joined = WeightGroup(member, store)
    buffer = torch.empty(size, dtype=torch.uint8, device=device)
    if not _joined.wait_for_begin(number):
        return None
    _joined.broadcast(buffer)
    return buffer
