"""Each grader by itself: known values, kinds, refusals."""

import math_verify.grader
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.rewards import (
    deepscaler_form,
    expression,
    grade_dapo,
    grade_deepscaler,
    grade_exact_match,
    grade_f1,
    grade_gpqa,
    grade_math,
    grade_math_verify,
)
from hooks.rewards.extract import last_boxed
from hooks.rewards.latex_text import NestedTooDeeply
from tests.cases_of import case

CASES = case("deepscaler")
SEVERAL = settings(max_examples=50, deadline=None)


@pytest.mark.parametrize(("response", "label"), CASES["one"])
def test_deepscaler_is_one(response, label):
    assert grade_deepscaler.grade(response, label, {}) == 1.0


@pytest.mark.parametrize(("response", "label"), CASES["zero"])
def test_deepscaler_is_zero(response, label):
    assert grade_deepscaler.grade(response, label, {}) == 0.0


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        (r"\boxed{99}</think>Final: \boxed{42}", "42", 1),
        (r"scratch \boxed{1}###Response\boxed{42}###Response\boxed{7}", "42", 1),
        (r"</think>\fbox{42}", r"\fbox{42}", 1),
        (r"</think>\boxed{\frac{1}{2}}", "0.5", 1),
        (r"</think>\boxed{42}", 42, 1),
        (r"</think>\boxed{0}", 0, 1),
        (r"</think>\boxed{42}", r"\boxed{42", 0),
        (r"</think>\boxed{x(x+1)}", "x^2+x", 1),
        (r"</think>\boxed{\sqrt{4}}", "2", 0),
        (r"</think>\boxed{(1,234, 5)}", "(1234,5)", 1),
        (r"</think>\boxed{[1,2)}", "(1,2)", 0),
        (r"</think>\boxed{7\frac{3}{4}}", "31/4", 1),
        (r"</think>\boxed{12345678901234567890}", "12345678901234567891", 0),
        (r"</think>\boxed{\text{even}}", "even", 1),
        (r"</think>\boxed{5 \text{ cm}}", "5", 1),
        (r"</think>\boxed{90^\circ}", "90", 1),
        (r"</think>\boxed{}", "5", 0),
    ],
)
def test_deepscaler_and_its_kinds(response, label, reward):
    assert grade_deepscaler.grade(response, label, {}) == reward


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9**9",
        "9!!!!!",
        "(x+y)**99999",
        "1/0",
        "0**(-1)",
        "(" * 5000,
        "{" * 5000,
        "\\frac",
        "\\sqrt",
        "\\sqrt x" * 600,
        "9" * 5000,
        "1e999999",
    ],
)
def test_what_has_no_small_value_is_wrong_at_once(answer):
    assert grade_deepscaler.grade(f"</think> \\boxed{{{answer}}}", "5", {}) == 0.0


NESTED = {
    "braces": "\\pi" + "{" * 120 + "}" * 120,
    "fractions": "\\frac{" * 150 + "}" * 150,
    "bare fractions": "\\frac x" * 600,
    "bare roots": "\\sqrt" * 600 + "x",
    "indices": "\\sqrt[" * 600,
}


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("module", [grade_deepscaler, grade_math])
def test_an_answer_that_is_nested_too_deeply_is_wrong_at_once_and_such_a_label_an_error(text, module):
    assert module.quick(f"</think>\\boxed{{{text}}}", "5", {}) == 0.0
    with pytest.raises(NestedTooDeeply):
        module.quick("</think>\\boxed{5}", text, {})


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED)
def test_no_other_grader_stumbles_over_nested_text(text):
    for module in (grade_dapo, grade_exact_match, grade_f1, grade_gpqa):
        for response in (text, f"\\boxed{{{text}}}", f"Answer: {text}"):
            reward = module.grade(response, "5", {})
            assert (reward["score"] if module is grade_dapo else reward) <= 0


def test_an_answer_that_sympy_can_not_compare_is_wrong_and_such_a_label_an_error(monkeypatch):
    def compare(first, second, *_):
        if first == second == 5:
            return True
        raise RecursionError

    monkeypatch.setattr(expression, "same_value", compare)
    assert grade_math.grade("\\boxed{x(x+1)}", "x^2+x", {}) == 0.0
    monkeypatch.setattr(math_verify.grader, "sympy_expr_eq", compare)
    assert grade_math_verify.grade("$\\sqrt{2}$", "5", {}) == 0.0
    with pytest.raises(RecursionError):
        grade_math_verify.grade("$\\sqrt{2}$", "x+1", {})


LONG_NUMBERS = {
    "digits": "1" * 20_000 + "x",
    "decimals": "1." + "1" * 20_000 + "x",
    "spaces": " " * 20_000 + "1" + " " * 20_000 + "x",
    "a fraction": "1" * 20_000 + "/" + "1" * 20_000,
    "thousands": "1" + ",234" * 20_000,
    "a number": "9" * 20_000 + ".5",
}


@pytest.mark.parametrize("text", LONG_NUMBERS.values(), ids=LONG_NUMBERS)
@pytest.mark.parametrize("label", ["5", "0.5"])
def test_a_long_text_is_never_read_as_a_number(text, label, monkeypatch):
    class Short:
        def fullmatch(self, text):
            assert len(text) <= deepscaler_form.LONGEST_NUMBER
            return number.fullmatch(text)

    number = deepscaler_form.NUMBER
    monkeypatch.setattr(deepscaler_form, "NUMBER", Short())
    assert grade_math.quick(f"\\boxed{{{text}}}", label, {}) in (0.0, None)
    assert grade_math.grade(f"\\boxed{{{text}}}", label, {}) == 0.0


@pytest.mark.parametrize("grade", [grade_deepscaler.grade, grade_math.grade, grade_math_verify.grade])
@pytest.mark.parametrize(
    "code", ["__import__('os').system('touch {0}')", "().__class__", "exec(open('{0}','w'))", "open('{0}','w')"]
)
def test_an_answer_is_never_executed(grade, code, tmp_path):
    mark = tmp_path / "executed"
    for text in (code.format(mark), code.format(mark).replace("_", "\\_")):
        for response in (f"</think> \\boxed{{{text}}}", f"</think> ${text}$", f"</think> {text}"):
            grade(response, "5", {})
            grade(response, "x+1", {})
    assert not mark.exists()


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        (r"answer: \boxed{42}", r"\boxed{42}", 1),
        ("just 42", "42", 0),
        (r"\boxed{42}", "", 0),
        (r"\boxed{\tfrac12}", "1/2", 1),
        (r"\boxed{45^{\circ}}", "45", 1),
        (r"\boxed{\left(1, 2\right)}", "(1,2)", 1),
        (r"\boxed{x = 3/4}", r"\frac{3}{4}", 1),
    ],
)
def test_math(response, label, reward):
    assert grade_math.grade(response, label, {}) == reward


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        ("07\n", "7", 1),
        ("7", "07", 1),
        ("+7<|im_end|>", "7", 1),
        ("-0", "0", 1),
        ("7.0", "7", 0),
        ("7 8", "78", 0),
        ("", "7", 0),
        ("9" * 5000, "0" + "9" * 5000, 1),
        (" paris\n", "paris", 1),
        ("Paris", "paris", 0),
    ],
)
def test_exact_match(response, label, reward):
    assert grade_exact_match.grade(response, label, {}) == reward


@pytest.mark.parametrize(("rule", "reward"), [("whole", 0), ("first_line", 0), ("last_number", 1)])
def test_exact_match_reads_the_part_it_is_told_to(rule, reward):
    assert grade_exact_match.grade("It is 3\nno, 1,234.", "1234", {"hook_options": {"answer": rule}}) == reward


def test_exact_match_refuses_a_rule_it_does_not_know():
    with pytest.raises(ValueError, match="first_word"):
        grade_exact_match.grade("7", "7", {"hook_options": {"answer": "first_word"}})


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        ("The quick fox", "quick brown fox", 0.8),
        ("The Quick, Brown Fox.", "quick brown fox", 1.0),
        ("yes", "no", 0.0),
        ("yes it is", "yes", 0.0),
        ("cat cat dog", "cat", 0.5),
        ("", "cat", 0.0),
    ],
)
def test_f1(response, label, reward):
    assert grade_f1.grade(response, label, {}) == pytest.approx(reward)


FOUR = {"choices": ["first", "second", "third", "fourth"]}


@pytest.mark.parametrize(
    ("response", "label", "metadata", "reward"),
    [
        ("The answer is C.", "C", {}, 1),
        ("The answer is C.", "D", {}, 0),
        ("The answer is I", 8, {}, 1),
        ("Answer: C", 2, FOUR, 1),
        ("Answer: B", 1, {"choices": {"a": "x", "b": "y", "c": "z"}}, 1),
        ("Answer: A", "anything", {"correct_letter": "a"}, 1),
        ("answer is B.", "capital of france", {"choices": ["London", "Capital of France"]}, 1),
        ("Definitely paris.", "Paris", {"choices": ["London", "Paris"]}, 1),
        ("Answer: A is wrong.</think>The answer is B.", "B", {}, 1),
        ("Answer: C, but actually A was right, no wait B.", "B", {"valid_letters": ["A", "B"]}, 1),
        ("we ruled out A, then B, settled on C", "C", {}, 1),
        ("I cannot answer this question because it is ambiguous.", "A", FOUR, 0),
        ("the count is 111", "B", {"choices": ["3", "11", "7", "9"]}, 0),
        ("It is 11 units.", "B", {"choices": ["3", "11", "7", "9"]}, 1),
        ("It is 10^-4 eV", "C", {"choices": ["1", "2", "10^-4 eV", "5"]}, 1),
        ("random text", "some answer", {}, 0),
    ],
)
def test_gpqa(response, label, metadata, reward):
    assert grade_gpqa.grade(response, label, metadata) == reward


@pytest.mark.parametrize(
    ("response", "label", "pred", "right"),
    [
        ("Answer: 41 was wrong.\nAnswer: 42", "42", "42", True),
        (r"Answer: $x = 1,234 \text{ dollars}$", "1234", "1234", True),
        ("Answer: 42", "4.2e1", "42", True),
        ("Answer: 9007199254740993", "9007199254740993", "9007199254740993", True),
        ("Answer: 43<|im_end|>", "42", "43", False),
        ("just 42", "42", "[INVALID]", False),
        ("Answer: 42" + " filler" * 60, "42", "[INVALID]", False),
        (r"Answer: \boxed{\frac12}", "1", r"\frac{1}{2}", False),
    ],
)
def test_dapo(response, label, pred, right):
    assert grade_dapo.grade(response, label, {}) == {"score": 1.0 if right else -1.0, "acc": right, "pred": pred}


def test_dapo_with_a_strict_box():
    strict = {"hook_options": {"strict_box": True}}
    assert grade_dapo.grade(r"so \boxed{42}", "42", strict) == {"score": 1.0, "acc": True, "pred": "42"}
    assert grade_dapo.grade("Answer: 42", "42", strict) == {"score": -1.0, "acc": False, "pred": None}


@pytest.mark.parametrize("label", ["0.5", "1/2", "1+2", "NaN", "Infinity", ""])
def test_dapo_refuses_a_label_that_is_no_whole_number(label):
    with pytest.raises(ValueError, match="must be an integer"):
        grade_dapo.grade("Answer: 0", label, {})


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        (r"so it is $\frac{2}{4}$", "0.5", 1),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1),
        ("The final answer is $7$. I hope it is correct. \\boxed{8}", "7", 1),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", 1),
        (r"\boxed{7}", "8", 0),
        ("no idea", "8", 0),
    ],
)
def test_math_verify(response, label, reward):
    assert grade_math_verify.grade(response, label, {}) == reward


def test_math_verify_refuses_a_label_it_can_not_read():
    with pytest.raises(ValueError, match="label"):
        grade_math_verify.grade("5", "", {})


TEXTS = st.sampled_from(
    ["{}", "{}\n", " {}", "\\boxed{{{}}}", "thus $\\boxed{{{}}}$.", "Answer: \\boxed{{{}}}", "</think>\\boxed{{{}}}"]
)


@SEVERAL
@given(TEXTS, st.integers(-999, 999) | st.integers(-(10**14), 10**14), st.integers(-2, 2))
def test_what_is_settled_at_once_is_what_the_grader_says(text, label, shift):
    response = text.format(label + shift)
    for module in (grade_math_verify, grade_math, grade_deepscaler):
        settled = module.quick(response, str(label), {})
        assert settled in (module.grade(response, str(label), {}), None)
        assert settled is not None or module is grade_math_verify


@SEVERAL
@given(
    st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**6), max_value=10**6)
)
def test_a_number_equals_itself(number):
    text = str(number)
    assert grade_exact_match.grade(text, text, {}) == 1
    assert grade_f1.grade(text, text, {}) == 1
    for grade in (grade_math.grade, grade_deepscaler.grade):
        assert grade(f"</think>\\boxed{{{text}}}", text, {}) == 1


@SEVERAL
@given(st.integers(-999, 999), st.integers(-999, 999))
def test_two_numbers_are_equal_only_if_they_are(first, second):
    for grade in (grade_math.grade, grade_deepscaler.grade, grade_math_verify.grade):
        assert grade(f"</think>\\boxed{{{first}}}", str(second), {}) == (first == second)


@given(st.text("{}\\boxed 1", max_size=40))
def test_what_is_boxed_has_balanced_braces(text):
    held = last_boxed(text)
    assert held is None or (held.count("{") == held.count("}") and f"boxed{{{held}}}" in text)
