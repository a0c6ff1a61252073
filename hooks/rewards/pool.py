"""Worker processes that grade, each answer within a time limit; an answer that hangs costs its worker, never the run.

Workers are plain `python -c` children that speak JSON over pipes: nothing is pickled, the parent's main module does not
run again, and the pool works from any thread, from a Ray actor and beside CUDA.
"""

import asyncio
import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PACKAGES = str(Path(__file__).parents[2])
START = """import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from hooks.rewards.worker import main
main(float(sys.argv[2]), int(sys.argv[3]))"""
LARGEST_BATCH = 32


class GradingError(Exception):
    """An answer that has no reward, with its id."""

    def __init__(self, answer_id: object, grader: str, reason: str):
        super().__init__(f"{grader} could not grade the answer of {answer_id}: {reason}")
        self.answer_id, self.grader, self.reason = answer_id, grader, reason


class AnswerTimedOut(GradingError):
    """The answer took longer than its time limit."""


class GraderFailed(GradingError):
    """The grader raised, or its process died."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    answer_id: object
    grader: str
    response: str
    label: str
    metadata: dict[str, Any]
    reward: Future[Any] = field(default_factory=Future)

    def as_json(self) -> list[Any]:
        return [self.grader, self.response, self.label, self.metadata]


class WorkerPool:
    """`processes` workers, started with the first answer; each answer has `seconds_per_answer` of wall time.

    Example:
        with WorkerPool(processes=2, seconds_per_answer=5) as pool:
            reward = await pool.grade("rollout 3", "math_verify", response, label, {})
    """

    def __init__(self, *, processes: int = 1, seconds_per_answer: float = 5.0, memory_mib: int = 4096):
        if processes < 1 or not 0 < seconds_per_answer < math.inf:
            raise ValueError(f"{processes} processes, {seconds_per_answer} seconds an answer: both have to be positive")
        self.processes, self.seconds_per_answer, self.memory_mib = processes, seconds_per_answer, memory_mib
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    async def grade(
        self, answer_id: object, grader: str, response: str, label: str, metadata: dict[str, Any]
    ) -> float | dict[str, Any]:
        """The reward.

        Raises:
            AnswerTimedOut, GraderFailed: with the answer's id.
        """
        return await asyncio.wrap_future(self.submit(answer_id, grader, response, label, metadata))

    def submit(
        self, answer_id: object, grader: str, response: str, label: str, metadata: dict[str, Any]
    ) -> Future[float | dict[str, Any]]:
        """The same as a future, for callers without an event loop."""
        job = _Job(answer_id=answer_id, grader=grader, response=response, label=label, metadata=metadata)
        self._start()
        self._jobs.put(job)
        return job.reward

    def close(self) -> None:
        """Finish what was submitted, then end the workers."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        with self._lock:
            while len(self._threads) < self.processes:
                thread = threading.Thread(target=self._serve, name="grading", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self) -> None:
        """One worker's side in this process: hand out batches, replace the worker when it dies."""
        worker = None
        while batch := self._next_batch():
            while batch:
                worker = worker or self._worker()
                done, died = _graded_by(worker, batch)
                batch = batch[done:]
                if died:
                    self._report_death(batch[0], _end(worker))
                    worker, batch = None, batch[1:]
        if worker:
            _end(worker)

    def _next_batch(self) -> list[_Job]:
        """Jobs for one worker, at least one, a fair share of the queue; empty when the pool closes."""
        batch: list[_Job] = []
        while len(batch) < min(LARGEST_BATCH, 1 + self._jobs.qsize() // self.processes):
            job = self._jobs.get()
            if job is None:
                if batch:
                    self._jobs.put(None)
                break
            batch.append(job)
        return batch

    def _worker(self) -> subprocess.Popen[str]:
        limits = (str(self.seconds_per_answer), str(self.memory_mib))
        return subprocess.Popen(
            [sys.executable, "-c", START, json.dumps([PACKAGES, *sys.path]), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # sympy goes through sets: with one seed an answer takes the same way, and time, in every worker.
            env={**os.environ, "PYTHONHASHSEED": "0"},
            start_new_session=True,  # Ctrl-C is for the run, which then ends its workers
        )

    def _report_death(self, job: _Job, code: int) -> None:
        if code == -signal.SIGALRM:
            reason = f"no result after {self.seconds_per_answer} s; the answer begins {job.response[:80]!r}"
            job.reward.set_exception(AnswerTimedOut(job.answer_id, job.grader, reason))
        else:
            job.reward.set_exception(GraderFailed(job.answer_id, job.grader, f"its process ended with code {code}"))


def _graded_by(worker: subprocess.Popen[str], batch: Sequence[_Job]) -> tuple[int, bool]:
    """How many jobs of the batch the worker answered, and whether it died before the rest."""
    stdin, stdout = _pipes(worker)
    try:
        stdin.write(json.dumps([job.as_json() for job in batch], default=str) + "\n")
        stdin.flush()
    except BrokenPipeError:
        return 0, True
    for done, job in enumerate(batch):
        line = stdout.readline()
        if not line:
            return done, True
        reward, error = json.loads(line)
        if error is None:
            job.reward.set_result(reward)
        else:
            job.reward.set_exception(GraderFailed(job.answer_id, job.grader, error))
    return len(batch), False


def _end(worker: subprocess.Popen[str]) -> int:
    """Close the worker's pipes and return its exit code."""
    stdin, stdout = _pipes(worker)
    with contextlib.suppress(BrokenPipeError):  # a worker that is gone has closed its end
        stdin.close()
    code = worker.wait()
    stdout.close()
    return code


def _pipes(worker: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert worker.stdin and worker.stdout
    return worker.stdin, worker.stdout
