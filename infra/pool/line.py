"""The line for GPUs: who waits, in which order. Everything here is called while the pool's folder is held alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.pool.files import hold, let_go, read_record, write_record


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a run asks for.

    Args:
        run: the run's id, for people.
        flow_run: id of its Prefect flow run.
        pool: work pool that it came through.
        gpus: how many; it gets all of them or none.
        candidates: ids of the GPUs that would do.
        priority: 1 first; a work queue's priority.
        process: who asks, as `infra.pool.process.ProcessIdentity` says it.
    """

    run: str
    flow_run: str
    pool: str
    gpus: int
    candidates: tuple[str, ...]
    priority: int
    process: str

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Claim:
        return cls(**{**data, "candidates": tuple(data["candidates"])})


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A place in the line: first by the work queue's priority, then first come."""

    path: Path
    number: int
    claim: Claim

    @property
    def place(self) -> tuple[int, int]:
        return self.claim.priority, self.number


class Line:
    """The tickets of one folder. A ticket is a held file: one whose holder has ended is nobody's, and is removed.

    Args:
        died: is told of each ticket that is removed, and of what it asked for.
    """

    def __init__(self, folder: Path, died: Callable[[Ticket], None]):
        self.folder, self.counter, self.died = folder / "tickets", folder / "last-ticket.json", died

    def draw(self, claim: Claim) -> tuple[Ticket, int]:
        """A new ticket at the end of its priority, and the descriptor by which this process holds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        last = json.loads(self.counter.read_text()) if self.counter.exists() else 0
        number = max([last, *(t.number for t in self.waiting())]) + 1
        unfinished = self.counter.with_suffix(".part")
        unfinished.write_text(json.dumps(number))
        unfinished.replace(self.counter)
        path = self.folder / f"{number:09d}.json"
        held = hold(path)
        assert held is not None, f"{path} is a new ticket and somebody holds it"
        write_record(held, asdict(claim))
        return Ticket(path=path, number=number, claim=claim), held

    def leave(self, ticket: Ticket, held: int) -> None:
        """Give a ticket back."""
        ticket.path.unlink(missing_ok=True)
        let_go(held)

    def waiting(self) -> list[Ticket]:
        """The tickets of living processes, in the order in which they are served."""
        found = []
        for path in self.folder.glob("*.json"):
            held, record = hold(path), read_record(path)
            ticket = Ticket(path=path, number=int(path.stem), claim=Claim.from_dict(record)) if record else None
            if held is not None:
                path.unlink()
                let_go(held)
                if ticket is not None:
                    self.died(ticket)
            elif ticket is not None:
                found.append(ticket)
        return sorted(found, key=lambda ticket: ticket.place)

    def before(self, ticket: Ticket) -> list[Ticket]:
        """Those who are served before: an earlier place, and at least one GPU that both could take.

        Nobody overtakes a ticket that waits for several GPUs, however many smaller ones come after it.
        """
        wanted = set(ticket.claim.candidates)
        return [t for t in self.waiting() if t.place < ticket.place and _meet(wanted, t.claim.candidates)]


def _meet(wanted: set[str], others: Collection[str]) -> bool:
    return not wanted.isdisjoint(others)
