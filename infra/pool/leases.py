"""Device leases: held files, one a GPU, so that the kernel frees them however their holder ends.

A process holds the whole folder for a moment to decide who gets what; leases and tickets are files that it goes on
holding. Granted is all or nothing, in the order of the line, and only what is really free: nobody of the last lease is
left, and on CUDA no process and hardly any memory is there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.pool.files import alone, append_record, hold, let_go, read_record, write_record
from infra.pool.history import earlier
from infra.pool.inventory import Gpu, Usage
from infra.pool.line import Claim, Line, Ticket
from infra.pool.process import carrying, command_of

HISTORY_BYTES = 16 * 2**20  # some ten thousand runs
TOKEN = "FANLINE_LEASE"  # in the environment of all that a holder starts while it holds


@dataclass(frozen=True, kw_only=True)
class Lease:
    """GPUs of one holder, in the host's order."""

    token: str
    claim: Claim
    gpus: tuple[Gpu, ...]
    held: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Why a claim is not granted yet.

    Args:
        ahead: tickets that are served before.
        free: how many GPUs it could have now.
        taken: by GPU id, who has it or what is left on it, in words.
    """

    ahead: tuple[Ticket, ...] = ()
    free: int = 0
    taken: dict[str, str] = field(default_factory=dict)


class LeaseFolder:
    """The leases of a host's GPUs, in one folder that all its processes share.

    Args:
        folder: on a disk of this host: files on a network are not freed with their holder.
        free_mib: memory that may be used on a GPU that counts as free.
        history_bytes: size of `history.jsonl` at which it becomes the earlier one, and the one before that goes.
    """

    def __init__(self, folder: Path, *, free_mib: int, history_bytes: int = HISTORY_BYTES):
        self.folder, self.free_mib, self.history_bytes = folder, free_mib, history_bytes
        self.line = Line(folder, lambda ticket: self._note("died", ticket.claim, ticket=ticket.number))
        self.history = folder / "history.jsonl"

    def join(self, claim: Claim) -> tuple[Ticket, int]:
        """Draw a ticket; whoever draws one has to take a lease by it or `leave`."""
        with self._alone():
            ticket, held = self.line.draw(claim)
            self._note("waits", claim, ticket=ticket.number)
            return ticket, held

    def leave(self, ticket: Ticket, held: int) -> None:
        with self._alone():
            self.line.leave(ticket, held)
            self._note("left", ticket.claim, ticket=ticket.number)

    def try_take(
        self, ticket: Ticket, ticket_held: int, gpus: Sequence[Gpu], usage: Callable[[], Mapping[str, Usage]]
    ) -> Lease | Waiting:
        """All the GPUs of a ticket, which is given back then, or why not yet.

        Args:
            gpus: those of the host.
            usage: says what runs on them, nothing of logical ones; asked only when enough are held by nobody.
        """
        claim = ticket.claim
        with self._alone():
            if ahead := self.line.before(ticket):
                return Waiting(ahead=tuple(ahead), free=0, taken=self._taken(claim))
            held, taken = self._held_by_nobody([g.id for g in gpus if g.id in claim.candidates])
            if len(held) >= claim.gpus:
                taken |= self._let_go_busy(held, usage())
            if len(held) < claim.gpus:
                for descriptor in held.values():
                    let_go(descriptor)
                return Waiting(free=len(held), taken=taken)
            chosen = list(held)[: claim.gpus]
            for gpu in list(held)[claim.gpus :]:
                let_go(held.pop(gpu))
            lease = Lease(
                token=secrets.token_hex(16),
                claim=claim,
                gpus=tuple(g for g in gpus if g.id in chosen),
                held=tuple(held.values()),
            )
            self._grant(lease, ticket)
            self.line.leave(ticket, ticket_held)
            return lease

    def give_back(self, lease: Lease) -> None:
        """End a lease. What its holder started has to have ended before; a GPU is not granted again until it has."""
        with self._alone():
            self._note("given", lease.claim, gpus=[g.id for g in lease.gpus], token=lease.token)
            for descriptor in lease.held:
                write_record(descriptor, {"token": lease.token, "run": lease.claim.run, "given": _now()})
                let_go(descriptor)

    def holders(self, gpus: Sequence[Gpu]) -> dict[str, dict[str, Any]]:
        """The record of each GPU that is held now, by id."""
        with self._alone():
            return {gpu.id: record for gpu in gpus if (record := self._held_record(gpu.id)) is not None}

    def waiting(self) -> list[Ticket]:
        with self._alone():
            return self.line.waiting()

    def _alone(self):
        return alone(self.folder / "alone.lock")

    def _file(self, gpu: str) -> Path:
        path = self.folder / "gpus" / f"{gpu}.json"
        path.parent.mkdir(exist_ok=True)
        return path

    def _held_record(self, gpu: str) -> dict[str, Any] | None:
        held = hold(self._file(gpu))
        if held is None:
            return read_record(self._file(gpu))
        let_go(held)
        return None

    def _held_by_nobody(self, gpus: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Hold every GPU that no process holds: {id: descriptor}, and of the others who has them."""
        held: dict[str, int] = {}
        taken: dict[str, str] = {}
        for gpu in gpus:
            if (descriptor := hold(self._file(gpu))) is None:
                taken[gpu] = _holder(read_record(self._file(gpu)))
            else:
                held[gpu] = descriptor
        return held, taken

    def _let_go_busy(self, held: dict[str, int], usage: Mapping[str, Usage]) -> dict[str, str]:
        """Let go of those that are not really free; by id, what is on them."""
        busy = {gpu: words for gpu in held if (words := self._busy(gpu, usage.get(gpu))) is not None}
        for gpu in busy:
            let_go(held.pop(gpu))
        return busy

    def _busy(self, gpu: str, usage: Usage | None) -> str | None:
        """What is on a GPU that nobody holds, in words; None where it is free."""
        last = read_record(self._file(gpu))
        if last and (left := carrying(TOKEN, last["token"])):
            return f"left of run {last['run']}: process {left[0]} ({command_of(left[0])})"
        if usage is None:
            return None
        if usage.pids:
            return f"in use by process {', '.join(map(str, usage.pids))}, which holds no lease"
        if usage.used_mib > self.free_mib:
            return f"{usage.used_mib} MiB in use by nobody who holds a lease (allowed {self.free_mib} MiB)"
        return None

    def _taken(self, claim: Claim) -> dict[str, str]:
        records = {gpu: self._held_record(gpu) for gpu in claim.candidates}
        return {gpu: _holder(record) for gpu, record in records.items() if record is not None}

    def _grant(self, lease: Lease, ticket: Ticket) -> None:
        claim = lease.claim
        for gpu, descriptor in zip(lease.gpus, lease.held, strict=True):
            last = read_record(self._file(gpu.id))
            if last and "given" not in last:  # its holder was killed: the kernel has freed it
                self._note("freed", claim, gpus=[gpu.id], token=last["token"], killed=last["run"])
            record = {"token": lease.token, "run": claim.run, "flow_run": claim.flow_run, "pool": claim.pool}
            record |= {"process": claim.process, "gpus": claim.gpus, "since": _now()}
            write_record(descriptor, record)
        ids = [g.id for g in lease.gpus]
        self._note("taken", claim, gpus=ids, token=lease.token, ticket=ticket.number)

    def _note(self, event: str, claim: Claim, **more: Any) -> None:
        """One line of the history; lines are in the order of events, because the folder is held."""
        who = {"run": claim.run, "flow_run": claim.flow_run, "pool": claim.pool, "process": claim.process}
        who |= {"priority": claim.priority, "asked": claim.gpus}
        if self.history.exists() and self.history.stat().st_size >= self.history_bytes:
            self.history.replace(earlier(self.history))
        append_record(self.history, {"event": event, **who, **more, "monotonic": time.monotonic(), "wall": _now()})


def _holder(record: dict[str, Any]) -> str:
    return f"run {record['run']} ({record['gpus']} GPUs since {record['since']}, {record['process']})"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
