"""How fast answers are graded: whole numbers, and symbolic answers beside math-verify called directly, in one run."""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.bench.growth import growth
from infra.grading import Answer, GradingPool

ROUNDS = 12  # what is compared takes turns this often, so that a load on the machine falls on all of it
SHAPES: tuple[Callable[[int, int], tuple[str, str]], ...] = (
    lambda a, b: (rf"\frac{{{2 * a}}}{{{2 * b}}}", rf"\frac{{{a}}}{{{b}}}"),
    lambda a, b: (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"),
    lambda a, b: (rf"(x+{a})(x-{b})", rf"x^2+{a - b}x-{a * b}"),
    lambda a, b: (rf"{a}x+{b}y", rf"{b}y+{a + 1}x"),
    lambda a, b: (rf"\frac{{\sqrt{{{b}}}+{a}}}{{2}}", rf"\frac{{{a}+\sqrt{{{b}}}}}{{2}}"),
    lambda a, b: (rf"({a}, {b})", rf"({a}, {b})"),
)


def run(*, integers: int = 100_000, symbolic: int = 600, seed: int = 0) -> dict[str, Any]:
    """Rates in answers a second. Every answer is different, so that no cache, math-verify's own included, helps.

    Returns:
        `integers`: answers a second of one core (CPU time), by grader, and what a hundredth, a tenth and all of the
        answers take. `symbolic`: math-verify called directly with its
        own time limits, this pool with one process and with two take turns, `ROUNDS` times; rates are over all rounds
        (wall time), `of_math_verify` and `scaling_1_to_2` medians of the rounds' ratios, `of_math_verify_cpu` the same
        of CPU seconds, all processes together; `equal` says whether all rewards agreed.
    """
    return {"integers": _integers(integers, seed), "symbolic": _symbolic(symbolic_answers(symbolic, seed))}


WARM_UP = [("$\\frac{2}{4}$", "\\frac{1}{2}")]
INTEGER_FORMS = {
    "exact_match": "{}\n",
    "math_verify": "So the answer is \\boxed{{{}}}.",
    "math": "So the answer is \\boxed{{{}}}.",
    "deepscaler": "</think>So the answer is \\boxed{{{}}}.",
    "dapo": "Answer: {}",
}


def symbolic_answers(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of response and label, all different, about half of them right."""
    draw = random.Random(seed)
    pairs = (SHAPES[i % len(SHAPES)](draw.randint(2, 10**5), draw.choice((2, 3, 5, 7, 11, 13))) for i in range(count))
    return [(f"Thus we find $\\boxed{{{given}}}$.", label) for given, label in pairs]


def _integers(count: int, seed: int) -> dict[str, Any]:
    sizes = sorted({max(1, count // part) for part in (100, 10, 1)})
    seconds = {grader: [_seconds(grader, size, seed) for size in sizes] for grader in INTEGER_FORMS}
    return {
        "answers": count,
        "per_second": {grader: round(count / of_sizes[-1]) for grader, of_sizes in seconds.items()},
        "sizes": [
            {"answers": size, "seconds": {grader: round(of_sizes[k], 6) for grader, of_sizes in seconds.items()}}
            for k, size in enumerate(sizes)
        ],
        "growth": {grader: growth(of_sizes) for grader, of_sizes in seconds.items()},
    }


def _seconds(grader: str, count: int, seed: int) -> float:
    """CPU seconds of so many answers; the grader is loaded before they begin."""
    draw = random.Random(seed)
    numbers = [draw.randint(0, 10**6) for _ in range(count)]
    form = INTEGER_FORMS[grader]
    answers = [
        Answer(id=i, grader=grader, response=form.format(n + i % 2), label=str(n)) for i, n in enumerate(numbers)
    ]
    with GradingPool() as pool:
        asyncio.run(pool.grade_many(answers[:1]))
        start = time.process_time()
        asyncio.run(pool.grade_many(answers))
        return time.process_time() - start


Texts = list[tuple[str, str]]


def _symbolic(texts: Texts) -> dict[str, Any]:
    rounds = [texts[k::ROUNDS] for k in range(min(ROUNDS, len(texts)))]
    limit = {"seconds_per_answer": 30.0}
    with _Directly() as directly, GradingPool(processes=1, **limit) as one, GradingPool(processes=2, **limit) as two:
        forms: list[Callable[[Texts], list]] = [directly, *(lambda t, p=p: _pooled(p, t) for p in (one, two))]
        for form in forms:
            form(WARM_UP * 16)
        wall, cpu = ([[0.0] * len(rounds) for _ in forms] for _ in range(2))
        equal = True
        for number, part in enumerate(rounds):
            rewards = []
            for which in _in_turn(number, len(forms)):
                started, used = time.perf_counter(), _cpu_seconds()
                rewards.append(forms[which](part))
                wall[which][number], cpu[which][number] = time.perf_counter() - started, _cpu_seconds() - used
            equal &= all(r == rewards[0] for r in rewards)
    rates = [round(len(texts) / sum(seconds), 1) for seconds in wall]
    return {
        "answers": len(texts),
        **dict(zip(("math_verify_directly", "one_process", "two_processes"), rates, strict=True)),
        "of_math_verify": _median_ratio(wall[0], wall[1]),
        "of_math_verify_cpu": _median_ratio(cpu[0], cpu[1]),
        "scaling_1_to_2": _median_ratio(wall[1], wall[2]),
        "cores": len(os.sched_getaffinity(0)),
        "equal": equal,
    }


def _in_turn(number: int, count: int) -> list[int]:
    """Every other round the other way around."""
    return list(range(count))[:: 1 if number % 2 else -1]


def _median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(first, second, strict=True)), 3)


def _cpu_seconds() -> float:
    """Of this process and its children."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return time.process_time() + sum(_cpu_seconds_of(int(pid)) for pid in children)


def _cpu_seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # see proc(5): utime, stime
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


DIRECTLY = """import json, sys
from math_verify import parse, verify
for line in sys.stdin:
    rewards = [float(verify(parse(f"${label}$"), parse(response))) for response, label in json.loads(line)]
    print(json.dumps(rewards), flush=True)"""


class _Directly:
    """math-verify in a process of its own, as fresh as the workers, with their hash seed: sympy's pace hangs on it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DIRECTLY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )

    def __call__(self, texts: Texts) -> list[float]:
        """A whole round in one message, so that messages cost next to nothing."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(texts) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> "_Directly":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def _pooled(pool: GradingPool, texts: Texts) -> list[Any]:
    answers = [
        Answer(id=i, grader="math_verify", response=response, label=label) for i, (response, label) in enumerate(texts)
    ]
    return [grade.reward for grade in asyncio.run(pool.grade_many(answers))]
