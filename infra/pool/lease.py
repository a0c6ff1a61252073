"""The lease of a run: its GPUs, from when engine and trainer start until they have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from infra.pool.board import artifact_key, artifact_rows, board_of
from infra.pool.hold import claim_of, held
from infra.pool.inventory import Gpu, Inventory
from infra.pool.leases import LeaseFolder
from infra.pool.line import Claim
from infra.pool.need import leased_inventory
from infra.run import Run
from infra.settings import Settings, settings
from infra.stopwatch import Stopwatch


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
    claim = claim_of(run.run_id, run.scenario.training.world_size, have, now, flow_run.get_id() or "")
    with timer("gpu_lease"):
        stack = contextlib.ExitStack()
        gpus = stack.enter_context(leased(claim, have, now))
    with stack:
        yield gpus


@contextlib.contextmanager
def leased(claim: Claim, have: Inventory, now: Settings) -> Iterator[tuple[Gpu, ...]]:
    """As `held`, inside a flow: its log and an artifact say how it stands."""
    log = get_run_logger()

    def tell(words: str, folder: LeaseFolder) -> None:
        log.info("%s", words)
        rows = artifact_rows(board_of(folder, have))
        create_table_artifact(
            rows, key=artifact_key(have.host), description=f"Who holds and awaits GPUs of {have.host}."
        )

    with held(claim, have, now, tell) as gpus:
        yield gpus
