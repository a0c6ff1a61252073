"""A process group that weights are broadcast in: the trainer is member 0, each GPU of each server a further one."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import Backend, _new_process_group_helper, _world

_joined: dict[str, Any] = {}  # of this server: the group it is in, by name; one at most


@dataclass(frozen=True)
class Membership:
    """Which member of which group somebody is, and where the group's members meet.

    Args:
        seconds: longest that a member waits for the others.
    """

    name: str
    rank: int
    members: int
    host: str
    port: int
    backend: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def limit(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.seconds)


def joined(member: Membership, store: TCPStore) -> Any:
    """The group, once all members are in it; torch has no public way to make one that is no part of the default one."""
    name: Any = member.name
    group, _ = _new_process_group_helper(
        member.members,
        member.rank,
        [],
        Backend(member.backend),
        PrefixStore(name, store),
        group_name=name,
        timeout=member.limit,
    )
    _world.pg_group_ranks[group] = {rank: rank for rank in range(member.members)}
    return group


def received(member: Membership, buffer: Tensor) -> Tensor:
    """The buffer with what member 0 broadcasts; a server stays in the group until it is told of another one."""
    if member.name not in _joined:
        _joined.clear()
        store = TCPStore(member.host, member.port, None, is_master=False, timeout=member.limit)
        _joined[member.name] = joined(member, store)
    sent(buffer, _joined[member.name], member.limit)
    return buffer


def sent(buffer: Tensor, group: Any, limit: datetime.timedelta) -> None:
    """Member 0's buffer goes to all others."""
    work = dist.broadcast(buffer, 0, group, async_op=True)
    assert work is not None, "this process is a member of the group"
    work.wait(limit)
