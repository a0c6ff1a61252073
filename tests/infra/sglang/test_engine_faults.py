"""A server that dies: in the middle of a generation, in one of its children, and before it ever answered."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.errors import EngineUnavailable
from infra.scenario.model import Engine
from infra.sglang.engine import SGLangEngine
from infra.supervisor import SHARED_MEMORY, descendants
from tests.engine_fixture import write_tiny_qwen2

pytestmark = pytest.mark.engine

DEADLINE = 60.0


def _engine(model: Path, log_path: Path, **settings) -> SGLangEngine:
    chosen = {"max_total_tokens": 4096, "max_running_requests": 4, "request_deadline_seconds": DEADLINE} | settings
    return SGLangEngine(model_path=model, settings=Engine(**chosen), device="cpu", seed=1, log_path=log_path)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangEngine]:
    """An engine of these tests' own: they kill it and start it again."""
    folder = tmp_path_factory.mktemp("mortal")
    with _engine(write_tiny_qwen2(folder / "model"), folder / "engine.log") as engine:
        engine.wait_ready()
        yield engine


def _title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def _process(engine: SGLangEngine, title: str) -> int:
    (found,) = (pid for pid in descendants(engine.process_id) if title in _title(pid))
    return found


def _load_files() -> set[Path]:
    return set(SHARED_MEMORY.glob("sglang_loads_*"))


def _generate(engine: SGLangEngine, kill: int | None = None, tokens: int = 8) -> list[int]:
    """A generation, in the middle of which a process is killed."""

    async def main() -> list[int]:
        async with engine.client() as client:
            running = asyncio.create_task(
                client.generate([1, 2, 3], max_new_tokens=tokens, temperature=1.0, seed=5, stop_token_ids=[])
            )
            if kill is not None:
                await asyncio.sleep(0.3)
                os.kill(kill, signal.SIGKILL)
            return (await running).tokens

    return asyncio.run(main())


def _nothing_is_left(engine: SGLangEngine, family: set[int]) -> None:
    deadline = time.monotonic() + DEADLINE
    while engine.running:
        assert time.monotonic() < deadline, "the supervisor still runs"
        time.sleep(0.05)
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


def _unavailable_after_kill(engine: SGLangEngine, victim: str) -> None:
    """Kill one of the server's processes in the middle of a generation: it is told, and nothing is left."""
    time.sleep(1.5)  # the supervisor looks once a second at who is there
    family = descendants(engine.process_id)
    shared = {p for p in _load_files() for pid in family if p.name in Path(f"/proc/{pid}/maps").read_text()}
    assert shared
    with pytest.raises(EngineUnavailable, match="/generate"):
        _generate(engine, kill=_process(engine, victim), tokens=480)
    _nothing_is_left(engine, family)
    assert not shared & _load_files()


def test_a_scheduler_that_dies_is_told_and_a_restart_mends_it(mortal):
    before = _generate(mortal)
    _unavailable_after_kill(mortal, "sglang::scheduler")
    restarted: list[str] = []
    mortal.after_restart = lambda: restarted.append(mortal.url)
    mortal.restart()
    assert restarted == [mortal.url]
    assert _generate(mortal) == before


def test_a_server_that_dies_is_told(mortal):
    _unavailable_after_kill(mortal, "infra.sglang.launch")
    with pytest.raises(EngineUnavailable, match="/generate"):
        _generate(mortal)


def test_a_server_that_dies_at_start_is_tried_twice_and_shows_its_log(tmp_path):
    with (
        _engine(tmp_path / "no-such-model", tmp_path / "engine.log") as engine,
        pytest.raises(EngineUnavailable) as told,
    ):
        engine.wait_ready()
    assert "twice" in told.value.message
    assert "no-such-model" in told.value.message.split("Its last lines:")[1]
    assert told.value.next_step == f"Read {tmp_path / 'engine.log'}."


def test_a_server_that_is_not_up_in_time_is_stopped(tmp_path, tiny_qwen2):
    with _engine(tiny_qwen2, tmp_path / "engine.log", start_deadline_seconds=0.2) as engine:
        with pytest.raises(EngineUnavailable, match=r"did not answer within 0\.2 s"):
            engine.wait_ready()
        assert not engine.running
