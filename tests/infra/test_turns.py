"""Engine and trainer take turns with a GPU's memory: in which order, and what is refused."""

from typing import Any

import pytest

from infra.errors import EngineUnavailable, InfraFault
from infra.megatron.reports import DeviceMemory
from infra.turns import GIB, Turns


class Host:
    """One GPU of 100 GiB, on which an engine holds 60 and a trainer's optimizer 20."""

    def __init__(self):
        self.done: list[str] = []
        self.engine, self.optimizer, self.leak = 60, 0, 0
        self.released = False
        self.stop: Any = None

    @property
    def free(self) -> int:
        return 100 - self.engine - self.optimizer - self.leak

    def release(self) -> None:
        self.done.append("engine releases")
        self.engine, self.released = 0, True

    def resume(self, part: str) -> None:
        self.done.append(f"engine takes {part}")
        self.engine += 30
        self.released = self.engine < 60

    def ranks(self, do: str) -> list[DeviceMemory]:
        before = self.free
        self.optimizer = 20 if do == "take_memory" else 0
        self.done.append(do)
        return [DeviceMemory((before if do == "take_memory" else self.free) * GIB, 100 * GIB)]


def turns_of(host: Any) -> Turns:
    turns = Turns(host, host.ranks)
    turns.begin()
    host.done.clear()
    return turns


def test_each_gives_back_before_the_other_takes():
    host = Host()
    turns = turns_of(host)
    turns.for_training()
    turns.for_training()  # it has it
    with turns.for_generation():
        host.done.append("push")
    with turns.for_generation():  # weights once more, as after a restart
        host.done.append("push again")
    assert host.done == [
        *("give_back_memory", "engine releases", "take_memory"),
        *("give_back_memory", "engine takes weights", "push", "engine takes kv_cache", "push again"),
    ]
    made = turns.made()
    assert [(h.to, h.free_gib) for h in made] == [("trainer", (100.0,)), ("engine", (100.0,))] and turns.made() == ()


def test_an_engine_that_gives_nothing_back_is_named_with_figures():
    host = Host()
    turns = turns_of(host)
    host.release = lambda: None
    words = r"The engine gave memory back, and no more is free than before: GPU of rank 0: 40\.0 of 100\.0 GiB free"
    with pytest.raises(InfraFault, match=words):
        turns.for_training()


@pytest.mark.parametrize("held", [60, 0], ids=["its memory goes with it", "its memory was free before"])
def test_an_engine_that_was_lost_before_training_is_ended_and_training_goes_on(held: int):
    host = Host()
    turns = turns_of(host)
    host.engine = held

    def lost() -> None:
        raise EngineUnavailable("POST /release_memory_occupation: connection refused.")

    def stop() -> None:
        host.done.append("engine ends")
        host.engine = 0

    host.release, host.stop = lost, stop
    turns.for_training()
    assert host.done == ["give_back_memory", "engine ends", "take_memory"]


def test_a_trainer_that_holds_too_much_is_named_before_the_engine_takes_anything():
    host = Host()
    turns = turns_of(host)
    turns.for_training()
    host.leak = 50
    words = r"The trainer gave memory back, and the engine needs 60\.0 GiB again: GPU of rank 0: 50\.0 of 100\.0 GiB"
    with pytest.raises(InfraFault, match=words), turns.for_generation():
        pass
    assert "engine takes weights" not in host.done


def test_a_restart_has_the_trainer_give_back_first_and_expects_nothing_of_the_old_server():
    host = Host()
    turns = turns_of(host)
    turns.for_training()
    turns.before_restart()
    host.engine, host.released, host.leak = 30, False, 60
    with turns.for_generation():
        host.done.append("push")
    assert host.done[-3:] == ["give_back_memory", "give_back_memory", "push"]
