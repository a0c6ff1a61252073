"""The lease of a run: its GPUs, from when engine and trainer start until they have ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from logging import Logger, LoggerAdapter
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from infra.errors import InfraFault
from infra.pool.board import artifact_key, artifact_rows, board_of
from infra.pool.inventory import Gpu, Inventory, cuda_environment, usage
from infra.pool.leases import TOKEN, Lease, LeaseFolder, Waiting
from infra.pool.line import Claim
from infra.pool.need import leased_inventory
from infra.pool.process import ProcessIdentity
from infra.run import Run
from infra.settings import Settings, settings
from infra.stopwatch import Stopwatch

LOOK_SECONDS = 0.5


class NoGpus(InfraFault):
    """A run did not get its GPUs in time."""


@contextlib.contextmanager
def gpu_lease(run: Run, timer: Stopwatch) -> Iterator[tuple[Gpu, ...]]:
    """The GPUs of a run's engine and trainer, leased; none, and nothing is done, where there are none to lease.

    Inside, `CUDA_VISIBLE_DEVICES` names exactly these, for all that is started.

    Raises:
        NoGpus: they were not free within `FANLINE_LEASE_DEADLINE` seconds; says who had them.
    """
    now = settings()
    have = leased_inventory(run.scenario, now)
    if have is None:
        yield ()
        return
    claim = claim_of(run.run_id, run.scenario.training.world_size, have, now)
    with timer("gpu_lease"):
        held = contextlib.ExitStack()
        gpus = held.enter_context(leased(claim, have, now))
    with held:
        yield gpus


def claim_of(run_id: str, gpus: int, have: Inventory, now: Settings) -> Claim:
    """What this process asks for, for the flow run that it is in."""
    return Claim(
        run=run_id,
        flow_run=flow_run.get_id() or "",
        pool=now.pool or "",
        gpus=gpus,
        candidates=tuple(gpu.id for gpu in have.gpus),
        priority=now.lease_priority,
        process=str(ProcessIdentity.of(os.getpid())),
    )


@contextlib.contextmanager
def leased(claim: Claim, have: Inventory, now: Settings) -> Iterator[tuple[Gpu, ...]]:
    """Wait in line for GPUs, hold them, and give them back; the log and an artifact say where they are."""
    folder, log = LeaseFolder(now.lease_dir, free_mib=now.gpu_free_mib), get_run_logger()
    lease = _wait(folder, claim, have, now.lease_deadline, log)
    log.info("holds %s of host %s", _names(lease.gpus), have.host)
    _publish(folder, have)
    with _environment({TOKEN: lease.token} | ({} if have.emulated else cuda_environment(lease.gpus))):
        try:
            yield lease.gpus
        finally:
            folder.give_back(lease)
    log.info("gave %s back", _names(lease.gpus))
    _publish(folder, have)


def _wait(
    folder: LeaseFolder, claim: Claim, have: Inventory, seconds: float, log: Logger | LoggerAdapter[Any]
) -> Lease:
    look = dict if have.emulated else usage
    ticket, held = folder.join(claim)
    deadline, said = time.monotonic() + seconds, ""
    try:
        while True:
            answer = folder.try_take(ticket, held, have.gpus, look)
            if isinstance(answer, Lease):
                return answer
            if (words := waiting_for(claim, have, answer)) != said:
                said = words
                log.info("%s", words)
                _publish(folder, have)
            if time.monotonic() > deadline:
                raise NoGpus(
                    f"Run {claim.run} did not get its GPUs within {seconds:g} s: {words}.",
                    next_step="See `fanline pool`; raise FANLINE_LEASE_DEADLINE to wait longer.",
                    ids=[claim.run],
                )
            time.sleep(LOOK_SECONDS)
    except BaseException:
        folder.leave(ticket, held)
        raise


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


def _publish(folder: LeaseFolder, have: Inventory) -> None:
    rows = artifact_rows(board_of(folder, have))
    create_table_artifact(rows, key=artifact_key(have.host), description=f"Who holds and awaits GPUs of {have.host}.")


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
