"""Leases between real processes: all or nothing, in order, and only what is really free."""

import itertools
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.chaos.processes import wait_until
from infra.pool.history import in_part, over_committed, overtaken, read_history
from infra.pool.inventory import Usage
from infra.pool.leases import Lease, LeaseFolder, Waiting
from tests.infra.pool.agent import GPUS, claim
from tests.infra.pool.conftest import AgentProcess

NewAgent = Callable[[], AgentProcess]
ALL = [gpu.id for gpu in GPUS]


@dataclass
class Model:
    """What the line has to do, said another way: sorted tickets and a set of free GPUs."""

    waiting: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # run: priority, number, GPUs
    held: dict[str, list[str]] = field(default_factory=dict)

    def take(self, run: str) -> list[str] | None:
        priority, number, gpus = self.waiting[run]
        free = [gpu for gpu in ALL if not any(gpu in h for h in self.held.values())]
        if any(other[:2] < (priority, number) for other in self.waiting.values()) or len(free) < gpus:
            return None
        del self.waiting[run]
        self.held[run] = free[:gpus]
        return self.held[run]


STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "take", "take", "give", "leave"]), st.integers(0, 5), st.integers(1, 4)),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_three_processes_are_served_in_order_all_or_nothing(three_agents: list[AgentProcess], steps):
    with tempfile.TemporaryDirectory() as folder:
        model = Model()
        for agent in three_agents:
            agent.folder = Path(folder)
        for do, number, gpus in steps:
            run, agent = f"run-{number}", three_agents[number % 3]
            if do == "join" and run not in model.waiting | model.held:
                priority = 1 + number % 2
                model.waiting[run] = (priority, agent.ask("join", run=run, gpus=gpus, priority=priority), gpus)
            elif do == "take" and run in model.waiting:
                assert agent.ask("take", run=run).get("gpus") == model.take(run)
            elif do == "give" and run in model.held:
                agent.ask("give", run=run)
                del model.held[run]
            elif do == "leave" and run in model.waiting:
                agent.ask("leave", run=run)
                del model.waiting[run]
        history = read_history(Path(folder, "history.jsonl"))
        assert over_committed(history) == in_part(history) == overtaken(history) == []
        for run in model.held:
            three_agents[int(run[-1]) % 3].ask("give", run=run)


def test_processes_that_race_never_have_the_same_gpu(three_agents: list[AgentProcess], tmp_path: Path):
    sizes = [[1, 2, 4, 1, 3, 2, 1, 2], [2, 2, 1, 4, 1, 1, 2, 3], [3, 1, 1, 2, 2, 4, 1, 1]]
    for number, agent in enumerate(three_agents):
        agent.folder = tmp_path
        agent.tell("hammer", run=f"run-{number}", sizes=sizes[number])
    spans = [span for agent in three_agents for span in agent.answer()]
    assert [len(span["gpus"]) for span in spans] == [*itertools.chain(*sizes)]
    for gpu in ALL:
        times = sorted((s["began"], s["ended"]) for s in spans if gpu in s["gpus"])
        assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(times))
    history = read_history(tmp_path / "history.jsonl")
    assert over_committed(history) == in_part(history) == overtaken(history) == []


def test_a_run_for_four_is_not_starved_by_a_stream_of_runs_for_two(three_agents: list[AgentProcess], tmp_path: Path):
    small, large, stream = three_agents
    for agent in three_agents:
        agent.folder = tmp_path
    for run in ("first", "second"):
        small.ask("join", run=run, gpus=2)
        assert len(small.ask("take", run=run)["gpus"]) == 2
    large.ask("join", run="large", gpus=4)
    for number in range(3):
        stream.ask("join", run=f"later-{number}", gpus=2)
    small.ask("give", run="first")
    assert stream.ask("take", run="later-0")["ahead"] == ["large"]
    waiting = large.ask("take", run="large")
    assert waiting["free"] == 2 and "run second (2 GPUs since" in waiting["taken"]["gpu-2"]
    small.ask("give", run="second")
    assert stream.ask("take", run="later-0")["ahead"] == ["large"]
    assert large.ask("take", run="large") == {"gpus": ALL}
    large.ask("give", run="large")
    assert stream.ask("take", run="later-1")["ahead"] == ["later-0"]
    assert len(stream.ask("take", run="later-0")["gpus"]) == 2


def test_pools_that_share_no_gpu_do_not_wait_for_each_other(three_agents: list[AgentProcess], tmp_path: Path):
    one, other, _ = three_agents
    one.folder = other.folder = tmp_path
    one.ask("join", run="one", gpus=2, candidates=ALL[:1])
    other.ask("join", run="other", gpus=2, candidates=ALL[2:])
    assert other.ask("take", run="other") == {"gpus": ALL[2:]}


def test_kill_9_of_a_holder_and_of_one_who_waits_frees_both_places(new_agent: NewAgent, tmp_path: Path):
    holder, waiter, other = new_agent(), new_agent(), new_agent()
    holder.ask("join", run="holder", gpus=3)
    holder.ask("take", run="holder")
    waiter.ask("join", run="waiter", gpus=4)
    other.ask("join", run="other", gpus=4)
    assert other.ask("take", run="other")["ahead"] == ["waiter"]
    waiter.kill()
    assert other.ask("take", run="other")["free"] == 1
    holder.kill()
    assert other.ask("take", run="other") == {"gpus": ALL}
    history = read_history(tmp_path / "history.jsonl")
    assert [e["event"] for e in history if e["event"] in ("died", "freed")] == ["died", "freed", "freed", "freed"]
    assert over_committed(history) == overtaken(history) == []


def test_a_child_that_outlives_its_holder_keeps_the_gpus_until_it_is_gone(new_agent: NewAgent):
    holder, other = new_agent(), new_agent()
    holder.ask("join", run="holder", gpus=2)
    holder.ask("take", run="holder")
    child = holder.ask("child", run="holder")
    other.ask("join", run="other", gpus=4)
    try:
        assert wait_until(lambda: b"FANLINE_LEASE=" in Path(f"/proc/{child}/environ").read_bytes(), 20)
        holder.kill()
        waiting = other.ask("take", run="other")
        assert waiting["free"] == 2
        assert waiting["taken"]["gpu-0"].startswith(f"left of run holder: process {child} (")
    finally:
        os.kill(child, signal.SIGKILL)
    assert wait_until(lambda: "gpus" in other.ask("take", run="other"), 20)


def test_a_forked_copy_of_the_holder_keeps_the_gpus_too(new_agent: NewAgent):
    holder, other = new_agent(), new_agent()
    holder.ask("join", run="holder", gpus=1)
    holder.ask("take", run="holder")
    copy = holder.ask("fork")
    other.ask("join", run="other", gpus=4)
    try:
        holder.process.kill()
        holder.process.wait()
        assert other.ask("take", run="other")["free"] == 3
    finally:
        os.kill(copy, signal.SIGKILL)
    assert wait_until(lambda: "gpus" in other.ask("take", run="other"), 20)


def test_a_gpu_with_a_foreign_process_or_used_memory_is_not_granted(tmp_path: Path):
    folder = LeaseFolder(tmp_path, free_mib=1024)
    used = {
        "gpu-0": Usage(used_mib=600, pids=(4711,)),
        "gpu-1": Usage(used_mib=4000, pids=()),
        "gpu-2": Usage(used_mib=4, pids=()),
        "gpu-3": Usage(used_mib=4, pids=()),
    }
    ticket, held = folder.join(claim("three", 3))
    waiting = folder.try_take(ticket, held, GPUS, lambda: used)
    assert isinstance(waiting, Waiting) and waiting.free == 2
    assert "process 4711" in waiting.taken["gpu-0"]
    assert "4000 MiB" in waiting.taken["gpu-1"] and "1024 MiB" in waiting.taken["gpu-1"]
    folder.leave(ticket, held)
    lease = folder.try_take(*folder.join(claim("two", 2)), GPUS, lambda: used)
    assert isinstance(lease, Lease) and [g.id for g in lease.gpus] == ["gpu-2", "gpu-3"]
    folder.give_back(lease)


def test_a_long_history_is_kept_in_two_files_and_read_as_one(tmp_path: Path):
    leases, path = LeaseFolder(tmp_path, free_mib=0, history_bytes=4000), tmp_path / "history.jsonl"
    for number in range(20):
        ticket, held = leases.join(claim(f"run-{number}", 1))
        lease = leases.try_take(ticket, held, GPUS, dict)
        assert isinstance(lease, Lease)
        leases.give_back(lease)
        assert [event["run"] for event in read_history(path)][-3:] == [f"run-{number}"] * 3
    assert sorted(p.name for p in tmp_path.glob("history*")) == ["history.earlier.jsonl", "history.jsonl"]
    assert all(file.stat().st_size < 5000 for file in tmp_path.glob("history*"))


def test_the_history_tells_of_what_must_not_be():
    def event(kind: str, run: str, ticket: int, gpus: list[str], asked: int = 1) -> dict:
        return {"event": kind, "run": run, "ticket": ticket, "gpus": gpus, "asked": asked, "priority": 1}

    events = [event("waits", "a", 1, []), event("waits", "b", 2, [])]
    events += [event("taken", "b", 2, ["gpu-0"], asked=2), event("taken", "a", 1, ["gpu-0"])]
    assert over_committed(events) == ["gpu-0: a beside b"]
    assert in_part(events) == ["b: 1 of 2"]
    assert overtaken(events) == ["b before a"]
