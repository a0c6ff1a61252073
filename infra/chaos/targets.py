"""What can be taken away from a run, and how it comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infra.chaos.launch import WORKER, CommandRun, Launched, PoolRun, Scene
from infra.chaos.processes import named, wait_until
from infra.chaos.services import bucket_store, fill, folder_store, joined_store, make_room, small_disk_store

PROCESS_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """One thing that is taken away.

    Args:
        strike: takes it away; what was launched is at hand.
        relieve: brings it back; None where the run has to do without it.
        when: `at once`, while the run goes on, or `after` the run has ended.
        opened: makes the store of the run, and the nodes that it joins.
        launch: starts the run.
        store_answers: whether the store can be asked after the strike.
    """

    name: str
    strike: Callable[[Scene, Any], object]
    relieve: Callable[[Scene, Any], object] | None = None
    when: Literal["at once", "after"] = "at once"
    opened: Callable[[Path], AbstractContextManager[Any]] = folder_store
    launch: Callable[[Scene], Launched] = CommandRun
    store_answers: bool = True


def _signals(command: str, number: signal.Signals) -> Callable[[Scene, object], None]:
    def strike(scene: Scene, _: object) -> None:
        assert wait_until(lambda: bool(named(scene.home, command)), PROCESS_SECONDS), f"there is no process {command}"
        os.kill(named(scene.home, command)[0], number)

    return strike


def _kills(command: str) -> Callable[[Scene, object], None]:
    return _signals(command, signal.SIGKILL)


TARGETS = {
    target.name: target
    for target in (
        Target(name="flow process", strike=_kills("infra.cli run")),
        Target(name="flow process of a pool", strike=_kills("infra.pool.engine"), launch=PoolRun),
        Target(
            name="worker",
            strike=_kills(WORKER),
            relieve=lambda _, launched: launched.start_worker(),
            launch=PoolRun,
        ),
        Target(
            name="worker asked to end",
            strike=_signals(WORKER, signal.SIGTERM),
            relieve=lambda _, launched: launched.start_worker(),
            launch=PoolRun,
        ),
        Target(name="cancel", strike=lambda _, launched: launched.cancel(), launch=PoolRun),
        Target(name="SGLang", strike=_kills("infra.sglang.launch")),
        Target(name="trainer rank", strike=_kills("ray::TrainerRank")),
        Target(name="Ray head", strike=_kills("gcs_server")),
        Target(
            name="Prefect server",
            strike=lambda scene, _: scene.prefect.kill(),
            relieve=lambda scene, _: scene.prefect.start(),
        ),
        Target(
            name="node of the engine",
            strike=lambda scene, _: scene.store.nodes.kill("engine-a"),
            relieve=lambda scene, _: scene.store.nodes.start("engine-b", "engine", gpus=1),
            opened=joined_store,
        ),
        Target(
            name="node of a rank",
            strike=lambda scene, _: scene.store.nodes.kill("trainer-b"),
            relieve=lambda scene, _: scene.store.nodes.start("trainer-c", "trainer", gpus=1),
            when="after",
            opened=joined_store,
        ),
        Target(
            name="S3 server",
            strike=lambda scene, _: scene.store.weed.kill(),
            relieve=lambda scene, _: scene.store.weed.start(),
            opened=bucket_store,
            store_answers=False,
        ),
        Target(
            name="store that refuses writes",
            strike=lambda scene, _: scene.store.weed.refuse_writes(),
            relieve=lambda scene, _: scene.store.weed.allow_writes(),
            when="after",
            opened=bucket_store,
        ),
        Target(
            name="full disk",
            strike=lambda scene, _: fill(Path(scene.store.store.uri)),
            relieve=lambda scene, _: make_room(Path(scene.store.store.uri)),
            when="after",
            opened=small_disk_store,
        ),
    )
}
