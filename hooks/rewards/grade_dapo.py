r"""DAPO's math reward (Yu et al., arXiv:2503.14476): the last `Answer:` line against a whole number, scored 1 or -1.

Normalisation is Minerva's (Lewkowycz et al., arXiv:2206.14858, appendix D.1), applied to answer and label alike.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Any

from hooks.rewards.extract import last_boxed

TAIL, STRICT_TAIL = 300, 100
INTEGER = re.compile(r"0|-?[1-9]\d*", re.ASCII)
ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
WORDS = (
    "square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents degrees cm gm "
    "pounds meters meals edges students childrentickets multiples"
)
MARKS = (
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}"),
    *("^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots", "<|im_end|>", "<|endoftext|>"),
)
DOLLARS = re.compile(r"[^$\n]*\$([^$\n]*)\$.*")
WRAPPERS = (r"\\text\{(.*?)\}", r"\\textbf\{(.*?)\}", r"\\overline\{(.*?)\}", r"\\boxed\{(.*)\}")


def grade(response: str, label: str, metadata: dict[str, Any]) -> dict[str, Any]:
    r"""`{"score": 1.0 or -1.0, "acc": bool, "pred": text}`, from the last 300 characters of the response.

    With `metadata["hook_options"]["strict_box"]` the answer is the last `\boxed{}` of the last 100 characters
    instead, compared letter by letter; `pred` is None where there is none.

    Raises:
        ValueError: the label is not a whole number.
    """
    tail = response[-TAIL:]
    if metadata.get("hook_options", {}).get("strict_box"):
        tail = tail[-STRICT_TAIL:]
        pred = last_boxed(tail[max(tail.rfind("\\boxed{"), 0) :]) if "\\boxed{" in tail else None
        right = pred == str(label)
    else:
        lines = ANSWER_LINE.findall(tail)
        pred = minerva_form(lines[-1] if lines else "[INVALID]")
        right = pred == whole_label(str(label))
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": pred}


def whole_label(label: str) -> str:
    """The label's digits: `42.0` and `4.2e1` -> `42`, exactly at any length.

    Raises:
        ValueError: see `grade`.
    """
    text = minerva_form(label)
    if INTEGER.fullmatch(text):
        return text
    refused = f"DAPO ground-truth label must be an integer, not {label[:80]!r}"
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError(refused) from None
    if not value.is_finite() or value.adjusted() > 1000 or value != value.to_integral_value():
        raise ValueError(refused)
    return f"{value:.0f}"


def minerva_form(answer: str) -> str:
    r"""Example: `x = 1,234 \text{ dollars}` -> `1234`; `\frac12` -> `\frac{1}{2}`."""
    if INTEGER.fullmatch(answer):
        return answer
    text = answer.split("=")[-1]
    for before, after in REPLACED:
        text = text.replace(before, after)
    for dropped in (*WORDS.split(), *MARKS):
        text = text.replace(dropped, "")
    text = DOLLARS.sub(r"$\1$", text)
    for wrapper in WRAPPERS:
        text = re.sub(wrapper, r"\1", text)
    text = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", text)
    text = re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace("$", "")
    digits = text.replace(",", "")
    return (digits if digits.isdigit() else text).strip()


quick = grade
