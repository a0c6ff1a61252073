"""Wait in line for GPUs, hold them, and give them back; who is told how it stands is the caller's choice."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from infra.errors import InfraFault
from infra.pool.inventory import Gpu, Inventory, cuda_environment, usage
from infra.pool.leases import TOKEN, Lease, LeaseFolder, Waiting
from infra.pool.line import Claim
from infra.pool.need import leased_inventory, refuse_more_than
from infra.pool.process import ProcessIdentity
from infra.scenario.model import Scenario
from infra.settings import Settings, settings

LOOK_SECONDS = 0.5

Tell = Callable[[str, LeaseFolder], None]


class NoGpus(InfraFault):
    """A run did not get its GPUs in time."""


def claim_of(run_id: str, gpus: int, have: Inventory, now: Settings, flow_run: str = "") -> Claim:
    """What this process asks for."""
    return Claim(
        run=run_id,
        flow_run=flow_run,
        pool=now.pool or "",
        gpus=gpus,
        candidates=tuple(gpu.id for gpu in have.gpus),
        priority=now.lease_priority,
        process=str(ProcessIdentity.of(os.getpid())),
    )


@contextlib.contextmanager
def held(claim: Claim, have: Inventory, now: Settings, tell: Tell) -> Iterator[tuple[Gpu, ...]]:
    """The GPUs of a claim. Inside, `CUDA_VISIBLE_DEVICES` names exactly these, for all that is started.

    Args:
        tell: called with words each time that something has changed.
    Raises:
        NoGpus: they were not free within `FANLINE_LEASE_DEADLINE` seconds; says who had them.
        ConfigurationError: the host does not have as many.
    """
    refuse_more_than(have, claim.gpus, claim.run, claim.run)
    folder = LeaseFolder(now.lease_dir, free_mib=now.gpu_free_mib)
    lease = _wait(folder, claim, have, now.lease_deadline, tell)
    tell(f"holds {_names(lease.gpus)} of host {have.host}", folder)
    with _environment({TOKEN: lease.token} | ({} if have.emulated else cuda_environment(lease.gpus))):
        try:
            yield lease.gpus
        finally:
            folder.give_back(lease)
    tell(f"gave {_names(lease.gpus)} back", folder)


@contextlib.contextmanager
def command_lease(name: str, scenario: Scenario) -> Iterator[None]:
    """The GPUs of a command that starts trainer ranks outside of a run: it stands in the same line as the runs.

    Raises:
        NoGpus, ConfigurationError: as `held`.
    """
    now = settings()
    have = leased_inventory(scenario, now)
    if have is None:
        yield
        return
    claim = claim_of(name, scenario.training.world_size, have, now)
    with held(claim, have, now, lambda words, _: print(f"fanline: {name} {words}", file=sys.stderr, flush=True)):
        yield


def waiting_for(claim: Claim, have: Inventory, answer: Waiting) -> str:
    """In words and numbers, whom a claim waits for."""
    parts = [f"waits for {claim.gpus} of {len(have.gpus)} GPUs of host {have.host}"]
    if answer.ahead:
        first = answer.ahead[0].claim
        parts.append(f"{len(answer.ahead)} before it in line, first run {first.run} for {first.gpus} GPUs")
    else:
        parts.append(f"next in line, {answer.free} free")
    numbers = {gpu.id: gpu.index for gpu in have.gpus}
    parts += [f"GPU {numbers[gpu]}: {words}" for gpu, words in sorted(answer.taken.items())]
    return "; ".join(parts)


def _wait(folder: LeaseFolder, claim: Claim, have: Inventory, seconds: float, tell: Tell) -> Lease:
    look = dict if have.emulated else usage
    ticket, drawn = folder.join(claim)
    deadline, said = time.monotonic() + seconds, ""
    try:
        while True:
            answer = folder.try_take(ticket, drawn, have.gpus, look)
            if isinstance(answer, Lease):
                return answer
            if (words := waiting_for(claim, have, answer)) != said:
                said = words
                tell(words, folder)
            if time.monotonic() > deadline:
                raise NoGpus(
                    f"Run {claim.run} did not get its GPUs within {seconds:g} s: {words}.",
                    next_step="See `fanline pool`; raise FANLINE_LEASE_DEADLINE to wait longer.",
                    ids=[claim.run],
                )
            time.sleep(LOOK_SECONDS)
    except BaseException:
        folder.leave(ticket, drawn)
        raise


def _names(gpus: tuple[Gpu, ...]) -> str:
    return f"{len(gpus)} GPUs ({', '.join(str(gpu.index) for gpu in gpus)})"


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
