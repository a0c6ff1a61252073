"""Engine and trainer on the same GPUs take turns with the memory: each gives back what the other needs to work.

generate ─▶ the engine gives back weights and cache ─▶ the trainer takes its optimizer back ─▶ train ─┐
    ▲                                                                                                 ▼
    └── the engine takes its cache ◀── weight sync ◀── it takes memory for weights ◀── optimizer to the host
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from infra.errors import EngineUnavailable, InfraFault
from infra.records.training import HandOver

if TYPE_CHECKING:
    from infra.megatron.reports import DeviceMemory
    from infra.sglang.serving import ServingEngine

GIB = 2**30

RanksDo = Callable[[str], "list[DeviceMemory]"]


class Turns:
    """Who has the memory. At the start both have what they start with: call `begin` before anything else.

    Args:
        ranks: has every trainer rank do `give_back_memory` or `take_memory`; what each one's GPU had free in between.
    """

    def __init__(self, engine: ServingEngine, ranks: RanksDo):
        self.engine, self._ranks = engine, ranks
        self._trainer_has_it = True
        self._made: list[HandOver] = []
        self._given: list[int] = []  # bytes of each GPU that the engine gave back last

    def begin(self) -> None:
        """The engine's turn, once both are there."""
        with self.for_generation():
            pass
        self.made()

    def for_training(self) -> None:
        """Engine to trainer; nothing happens where the trainer has the memory.

        Raises:
            InfraFault: nothing became free by it; gives the figures.
        """
        if self._trainer_has_it:
            return
        started = time.monotonic()
        before, lost = self._ranks("give_back_memory"), False  # which they did: for what is free
        try:
            self.engine.release()
        except EngineUnavailable:
            lost = True
            self.engine.stop()  # it is started again for the weight sync, as one that was lost in any other place
        memory = self._ranks("take_memory")
        self._trainer_has_it = True
        # Of an engine that was lost nobody knows when its memory became free, and the next one takes its own.
        self._given = [] if lost else [gpu.free - was.free for gpu, was in zip(memory, before, strict=True)]
        self._note("trainer", started, memory)
        if self._given and sum(self._given) <= 0:
            self._refuse("The engine gave memory back, and no more is free than before", memory)

    @contextmanager
    def for_generation(self) -> Iterator[None]:
        """Trainer to engine. Inside the block the engine has room for the weights, which are to be set there.

        Raises:
            InfraFault: less is free than the engine gave back; gives the figures.
        """
        started = time.monotonic()
        memory = self._ranks("give_back_memory") if self._trainer_has_it else []
        asleep = self.engine.released
        if asleep:
            if any(gpu.free < given for gpu, given in zip(memory, self._given, strict=False)):
                given = ", ".join(f"{given / GIB:.1f}" for given in self._given)
                self._refuse(f"The trainer gave memory back, and the engine needs {given} GiB again", memory)
            self.engine.resume("weights")
        seconds = time.monotonic() - started
        yield
        started = time.monotonic() - seconds
        if asleep:
            self.engine.resume("kv_cache")
        if self._trainer_has_it:
            self._note("engine", started, memory)
        self._trainer_has_it = False

    def before_restart(self) -> None:
        """A server that starts takes all its memory at once."""
        self._ranks("give_back_memory")
        self._given = []  # by a server that is gone

    def made(self) -> tuple[HandOver, ...]:
        """The hand-overs since this was asked last."""
        made, self._made = tuple(self._made), []
        return made

    def _note(self, to: str, started: float, memory: list[DeviceMemory]) -> None:
        free = tuple(round(gpu.free / GIB, 2) for gpu in memory)
        self._made.append(HandOver(to=to, seconds=time.monotonic() - started, free_gib=free))

    def _refuse(self, words: str, memory: list[DeviceMemory]) -> NoReturn:
        figures = ", ".join(
            f"GPU of rank {k}: {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB free" for k, gpu in enumerate(memory)
        )
        raise InfraFault(
            f"{words}: {figures}.",
            next_step="See with nvidia-smi who holds it; lower engine.memory_fraction or say engine.offload false.",
            ids=list(range(len(memory))),
        )
