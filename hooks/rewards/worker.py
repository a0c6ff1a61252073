"""The process that grades: reads batches of answers as JSON lines, answers each on a line of its own.

An answer that takes too long ends this process: an interval timer with the system's own default action, so that neither
a loop in C nor a lost parent can outlive it. The parent sees which answer it was from the replies it has.
"""

import importlib
import json
import os
import resource
import signal
import sys
from typing import Any


def main(seconds_per_answer: float, memory_mib: int) -> None:
    """Serve until standard input ends. Whatever a grader prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    for line in sys.stdin:
        for grader, response, label, metadata in json.loads(line):
            replies.write(json.dumps(_graded(grader, response, label, metadata, seconds_per_answer)) + "\n")
            replies.flush()


def _graded(grader: str, response: str, label: str, metadata: dict[str, Any], seconds: float) -> list[Any]:
    """`[reward, None]`, or `[None, error text]`. Importing the grader is not on the answer's time."""
    from hooks.rewards.score import grader_module

    try:
        module = grader_module(grader)
        for name in vars(module).get("WORKER_IMPORTS", ()):
            importlib.import_module(name)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return [module.grade(response, label, metadata), None]
    except Exception as error:  # whatever a grader raises becomes a report with the answer's id, never a reward
        return [None, f"{type(error).__name__}: {error}"[:500]]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
