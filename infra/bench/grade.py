"""How fast answers are graded: whole numbers, and symbolic answers beside math-verify called directly, in one run."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from infra.grading import Answer, GradingPool

SHAPES: tuple[Callable[[int, int], tuple[str, str]], ...] = (
    lambda a, b: (rf"\frac{{{2 * a}}}{{{2 * b}}}", rf"\frac{{{a}}}{{{b}}}"),
    lambda a, b: (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"),
    lambda a, b: (rf"(x+{a})(x-{b})", rf"x^2+{a - b}x-{a * b}"),
    lambda a, b: (rf"{a}x+{b}y", rf"{b}y+{a + 1}x"),
    lambda a, b: (rf"\frac{{\sqrt{{{b}}}+{a}}}{{2}}", rf"\frac{{{a}+\sqrt{{{b}}}}}{{2}}"),
    lambda a, b: (rf"({a}, {b})", rf"({a}, {b})"),
)


def run(*, integers: int = 60_000, symbolic: int = 300, seed: int = 0) -> dict[str, Any]:
    """Rates in answers a second. Every answer is different, so that no cache, math-verify's own included, helps.

    Returns:
        `integers`: answers a second of one core (CPU time), by grader. `symbolic`: answers a second (wall time) of this
        pool with one and two processes, and of math-verify called directly with its own time limits, measured before
        and after the pool (mean); `equal` says whether all rewards agreed.
    """
    texts = symbolic_answers(symbolic, seed)
    _directly(WARM_UP)
    before = _directly(texts)
    one, rewards_of_one = asyncio.run(_pooled(texts, processes=1))
    two, rewards_of_two = asyncio.run(_pooled(texts, processes=2))
    after = _directly(texts)
    reference = (before[0] + after[0]) / 2
    return {
        "integers": {"answers": integers, "per_second": {g: _integers(g, integers, seed) for g in INTEGER_FORMS}},
        "symbolic": {
            "answers": symbolic,
            "math_verify_directly": round(symbolic / reference, 1),
            "one_process": round(symbolic / one, 1),
            "two_processes": round(symbolic / two, 1),
            "of_math_verify": round(reference / one, 3),
            "scaling_1_to_2": round(one / two, 2),
            "equal": after[1] == rewards_of_one == rewards_of_two,
        },
    }


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


def _integers(grader: str, count: int, seed: int) -> float:
    draw = random.Random(seed)
    numbers = [draw.randint(0, 10**6) for _ in range(count)]
    form = INTEGER_FORMS[grader]
    answers = [
        Answer(id=i, grader=grader, response=form.format(n + i % 2), label=str(n)) for i, n in enumerate(numbers)
    ]
    with GradingPool() as pool:
        start = time.process_time()
        asyncio.run(pool.grade_many(answers))
        return round(count / (time.process_time() - start))


def _directly(texts: list[tuple[str, str]]) -> tuple[float, list[float]]:
    from math_verify import parse, verify

    start = time.perf_counter()
    rewards = [float(verify(parse(f"${label}$"), parse(response))) for response, label in texts]
    return time.perf_counter() - start, rewards


async def _pooled(texts: list[tuple[str, str]], *, processes: int) -> tuple[float, list]:
    with GradingPool(processes=processes, seconds_per_answer=30) as pool:
        await pool.grade_many(_answers(WARM_UP * processes * 8))
        start = time.perf_counter()
        grades = await pool.grade_many(_answers(texts))
        return time.perf_counter() - start, [grade.reward for grade in grades]


def _answers(texts: list[tuple[str, str]]) -> list[Answer]:
    return [
        Answer(id=i, grader="math_verify", response=response, label=label) for i, (response, label) in enumerate(texts)
    ]
