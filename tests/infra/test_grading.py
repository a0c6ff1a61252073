"""Many answers at once: order, ids, errors that hide nothing."""

import asyncio

import pytest

from infra.bench import grade as bench
from infra.grading import Answer, GradingFailed, GradingPool


def answer(id, response, label, grader="math"):
    return Answer(id=id, grader=grader, response=response, label=label)


def test_grades_come_in_the_order_of_the_answers_and_a_bad_one_hides_no_other():
    answers = [
        answer("a", r"\boxed{2\sqrt{2}}", r"\sqrt{8}"),
        answer("b", r"\boxed{5}", "5"),
        answer("c", "Answer: 5", "a half", "dapo"),
        answer("d", "$9^{9^{9^{9}}}$", "5", "math_verify"),
        answer("e", r"\boxed{x+1}", "1+x"),
        answer("f", r"\boxed{x+1}", "2+x"),
    ]
    with GradingPool(processes=1, seconds_per_answer=2) as pool:
        grades = asyncio.run(pool.grade_many(answers))
    assert [grade.id for grade in grades] == list("abcdef")
    assert [grade.reward for grade in grades] == [1.0, 1.0, None, None, 1.0, 0.0]
    assert [grade.error.ids for grade in grades if grade.error] == [("c",), ("d",)]


def test_one_answer_raises_with_its_id():
    with GradingPool() as pool, pytest.raises(GradingFailed, match="rollout 4") as failed:
        asyncio.run(pool.grade("rollout 4", "dapo", "Answer: 5", "a half"))
    assert failed.value.verdict == "REGRESSION"


def test_a_grader_that_does_not_exist_is_an_error_with_the_answers_id():
    with GradingPool() as pool, pytest.raises(GradingFailed, match="rollout 4"):
        asyncio.run(pool.grade("rollout 4", "nonsense", "5", "5"))


def test_the_bench_agrees_with_math_verify():
    figures = bench.run(integers=200, symbolic=6)
    assert figures["symbolic"]["equal"]
    whole = figures["integers"]
    assert set(whole["per_second"]) == set(bench.INTEGER_FORMS) == set(whole["growth"])
    assert [row["answers"] for row in whole["sizes"]] == [2, 20, 200]
    assert all(len(grown) == 2 for grown in whole["growth"].values())
