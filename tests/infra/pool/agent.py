"""A process that takes leases as it is told: one JSON command a line on standard input, one answer a line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from infra.pool.inventory import Gpu
from infra.pool.leases import TOKEN, Lease, LeaseFolder, Waiting
from infra.pool.line import Claim, Ticket
from infra.pool.process import ProcessIdentity

GPUS = tuple(Gpu(id=f"gpu-{n}", index=n, accelerator="cpu", memory_gib=1.0) for n in range(4))
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def claim(run: str, gpus: int, priority: int = 1, candidates: list[str] | None = None) -> Claim:
    return Claim(
        run=run,
        flow_run="",
        pool="tests",
        gpus=gpus,
        candidates=tuple(candidates or [g.id for g in GPUS]),
        priority=priority,
        process=str(ProcessIdentity.of(os.getpid())),
    )


class Agent:
    """What an agent process holds."""

    def __init__(self, folder: str):
        self.leases = LeaseFolder(Path(folder), free_mib=0)
        self.tickets: dict[str, tuple[Ticket, int]] = {}
        self.held: dict[str, Lease] = {}

    def join(self, run: str, gpus: int, priority: int = 1, candidates: list[str] | None = None) -> int:
        self.tickets[run] = self.leases.join(claim(run, gpus, priority, candidates))
        return self.tickets[run][0].number

    def take(self, run: str) -> dict[str, Any]:
        answer = self.leases.try_take(*self.tickets[run], GPUS, dict)
        if isinstance(answer, Waiting):
            return {"ahead": [t.claim.run for t in answer.ahead], "free": answer.free, "taken": answer.taken}
        del self.tickets[run]
        self.held[run] = answer
        return {"gpus": [g.id for g in answer.gpus]}

    def give(self, run: str) -> None:
        self.leases.give_back(self.held.pop(run))

    def leave(self, run: str) -> None:
        self.leases.leave(*self.tickets.pop(run))

    def child(self, run: str) -> int:
        """A child program in a session of its own, as a lease's holder starts it."""
        environment = {**os.environ, TOKEN: self.held[run].token}
        quiet = subprocess.DEVNULL
        return subprocess.Popen(SLEEPER, env=environment, start_new_session=True, stdin=quiet, stdout=quiet).pid

    def fork(self) -> int:
        """A child of the same program, with copies of all that is held."""
        if pid := os.fork():
            return pid
        os.setsid()
        os.close(0)
        os.close(1)
        time.sleep(600)
        os._exit(0)

    def hammer(self, run: str, sizes: list[int]) -> list[dict[str, Any]]:
        """Lease again and again, as fast as it goes; says which GPUs were held from when to when."""
        spans = []
        for turn, gpus in enumerate(sizes):
            name = f"{run}-{turn}"
            self.join(name, gpus)
            while "gpus" not in (answer := self.take(name)):
                time.sleep(0.002)
            began = time.monotonic()
            time.sleep(0.001)
            spans.append({"gpus": answer["gpus"], "began": began, "ended": time.monotonic()})
            self.give(name)
        return spans


def main() -> None:
    agents: dict[str, Agent] = {}
    for line in sys.stdin:
        command = json.loads(line)
        agent = agents.setdefault(command["folder"], Agent(command["folder"]))
        answer = getattr(agent, command["do"])(**command["with"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
