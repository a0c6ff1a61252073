r"""The comparison of DeepScaleR (which is also slime's): equal after normalisation, or symbolically.

Its rules are kept because runs are compared by them: a fraction has to be reduced, a whole number is never matched by
an expression that only simplifies to it, tuples are compared in order. Whole numbers are exact at any length.
"""

import re
from fractions import Fraction

from hooks.rewards.hendrycks import hendrycks_form, unwrap_text
from hooks.rewards.latex_text import NestedTooDeeply, latex_to_text

UNITS = "degree cm centimeter meter mile second minute hour day week month year foot feet inch yard"
UNIT = {unit: re.compile(rf"{unit}(es)?(s)? *(\^[0-9]+)?") for unit in UNITS.split(" ")}
INTEGER = re.compile(r"0|-?[1-9]\d*", re.ASCII)
NUMBER = re.compile(r"\s*+[+-]?(\d++\.?\d*+|\.\d++)(e[+-]?\d{1,3})?\s*+", re.ASCII | re.IGNORECASE)
LONGEST_NUMBER = 1000
THOUSANDS = re.compile(r"(\d),(\d\d\d)(?=$|\D)")
FRACTION = re.compile(r"-?[0-9]+.?/0*[1-9][0-9]*.?")
NEVER_EVALUATED = re.compile(r"\^\{|\^\(|\^[0-9]+\^|\^[0-9][0-9]+")
BRACKETS = "()[]"
WHOLE = Fraction(1, 10_000_000)


def same_answer(given: str, label: str) -> bool:
    """Whether the given answer equals the label."""
    settled = settle(given, label)
    return evaluate(given, label) if settled is None else settled


def settle(given: str, label: str) -> bool | None:
    """The same without evaluating anything: None where only a symbolic comparison can tell.

    Raises:
        NestedTooDeeply: the label is; an answer that is equals nothing.
    """
    if INTEGER.fullmatch(given) and INTEGER.fullmatch(label):
        return given == label
    if hendrycks_form(given) == hendrycks_form(label):
        return True
    label = plain_form(label)
    try:
        given = plain_form(given)
    except NestedTooDeeply:
        return False
    if given == label:
        return True
    if not given or not label:
        return False
    givens, labels = elements(given), elements(label)
    if len(givens) != len(labels) or (len(labels) > 1 and (given[0], given[-1]) != (label[0], label[-1])):
        return False
    verdicts = [_settle_element(g, t) for g, t in zip(givens, labels, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def evaluate(given: str, label: str) -> bool:
    """Whether every element is equal symbolically; text that is no expression is not."""
    # sympy takes a second to import, and most answers are settled without it.
    from hooks.rewards.expression import read_expression, same_value

    try:
        pairs = zip(elements(plain_form(given)), elements(plain_form(label)), strict=True)
        return all(_settle_element(g, t) or same_value(read_expression(g), read_expression(t)) for g, t in pairs)
    except (ArithmeticError, RuntimeError, TypeError, ValueError):  # NotAnExpression, or what sympy can not compare
        return False


def plain_form(answer: str) -> str:
    r"""Lower case, no units, no LaTeX, whole numbers as digits.

    Example: `1,234` -> `1234`; `7\frac{3}{4}` -> `7+3/4`; `5.0 cm` -> `5`; `2\sqrt{2}` -> `2sqrt(2)`
    """
    text = unwrap_text(answer).replace("\\%", "%").replace("\\$", "$").replace("$", "").replace("%", "")
    text = text.replace(" or ", " , ").replace(" and ", " , ")
    text = text.replace("million", "*10^6").replace("billion", "*10^9").replace("trillion", "*10^12")
    for unit, pattern in UNIT.items():
        if unit in text:
            text = pattern.sub("", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text[:1] == "{" and text[-1:] == "}":
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    text = whole_number(text) or text
    if "\\" in text:
        text = latex_to_text(re.sub(r"\\[td]?frac", r" \\frac", text))
    text = re.sub(r"- *", "-", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", text).replace(" ", "")
    text = text.replace("{", "").replace("}", "").lower()
    return whole_number(text.replace(",", "")) or text if _is_whole(text) else text


def elements(text: str) -> list[str]:
    """The parts of a tuple or interval; thousands separators are no tuple."""
    text = _without_thousands(text)
    inner = text[1:-1]
    if len(text) > 2 and text[0] in BRACKETS and text[-1] in BRACKETS and not set(BRACKETS) & set(inner):
        return [part.strip() for part in inner.split(",")]
    return [text]


def whole_number(text: str) -> str | None:
    """Its digits where the text is a number within 1e-7 of a whole one, else None."""
    value = number(text)
    if value is None:
        return None
    nearest = round(value)
    return str(nearest) if abs(value - nearest) <= WHOLE else None


def number(text: str) -> Fraction | None:
    """The value of a decimal number; None where the text is no number, or one of more than 1000 characters."""
    return Fraction(text) if len(text) <= LONGEST_NUMBER and NUMBER.fullmatch(text) else None


def _settle_element(given: str, label: str) -> bool | None:
    if FRACTION.fullmatch(given) and FRACTION.fullmatch(label):
        return given == label
    if _is_whole(given) != _is_whole(label) or not may_be_evaluated(f"({label})-({given})"):
        return False
    if given == label:
        return True
    values = number(given), number(label)
    return None if None in values else values[0] == values[1]


def may_be_evaluated(text: str) -> bool:
    """At most two letters besides roots, and no tower of powers or power of two digits."""
    letters = {c for c in text.replace("sqrt", "").replace("frac", "") if c.isalpha()}
    return len(letters) <= 2 and not NEVER_EVALUATED.search(text)


def _is_whole(text: str) -> bool:
    return whole_number(_without_thousands(text)) is not None


def _without_thousands(text: str) -> str:
    while (joined := THOUSANDS.sub(r"\1\2", text)) != text:
        text = joined
    return text
