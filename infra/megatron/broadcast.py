"""Weights to servers by a process group of their own (NCCL, on a CPU gloo): for engines on other GPUs or hosts."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import Backend, _new_process_group_helper, _world

from infra.megatron.reports import PUSH_SECONDS
from infra.megatron.weights import Named, Receiver, post
from infra.sglang.address import ServerAddress

LIMIT = datetime.timedelta(seconds=PUSH_SECONDS)


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
            self._meet(servers)
        known, self._servers = self._servers, []  # a group that a push failed in is of no use any more
        payload = {
            "names": [name for name, _ in named],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            "shapes": [list(tensor.shape) for _, tensor in named],
            "group_name": self._name,
            "flush_cache": True,
            "weight_version": version,
        }
        path = "/update_weights_from_distributed"
        try:
            _beside([(server, path, payload) for server in servers], lambda: self._send(named))
        except BaseException:
            if self.backend == "nccl":  # its kernels would wait for the member that is gone, and the trainer for them
                self._group.abort()
            raise
        self._servers = known

    @property
    def _name(self) -> str:
        return f"{self.run_id}-{self._made}"

    def _meet(self, servers: list[ServerAddress]) -> None:
        """A new group with these servers; one from before is forgotten, its members may be gone."""
        self._servers, self._made = [], self._made + 1
        store = TCPStore(self.host, 0, None, is_master=True, wait_for_workers=False, timeout=LIMIT)
        sizes = [max(len(server.devices), 1) for server in servers]
        members = 1 + sum(sizes)
        common = {
            "master_address": self.host,
            "master_port": store.port,
            "world_size": members,
            "group_name": self._name,
            "backend": self.backend,
        }
        places = [{**common, "rank_offset": 1 + sum(sizes[:k])} for k in range(len(servers))]
        path = "/init_weights_update_group"
        asked = [(server, path, place) for server, place in zip(servers, places, strict=True)]
        _beside(asked, lambda: self._join(store, members))
        self._servers = servers

    def _join(self, store: TCPStore, members: int) -> None:
        # As the servers do it: torch has no public way to make a group that is no part of the default one.
        name: Any = self._name
        self._group, _ = _new_process_group_helper(
            members, 0, [], Backend(self.backend), PrefixStore(name, store), group_name=name, timeout=LIMIT
        )
        _world.pg_group_ranks[self._group] = {rank: rank for rank in range(members)}

    def _send(self, named: Named) -> None:
        for work in [dist.broadcast(tensor, 0, self._group, async_op=True) for _, tensor in named]:
            assert work is not None, "this process is a member of the group"
            work.wait(LIMIT)


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
