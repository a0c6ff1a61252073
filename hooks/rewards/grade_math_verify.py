r"""math-verify (Hugging Face): LaTeX and plain expressions compared by sympy; the default grader for open answers.

math-verify's own time limits use signals, which only work in a main thread: they are off here, and the worker process
has a limit of its own. math-verify reads LaTeX with a grammar, and plain text only where it is digits and operators, so
no answer is executed.
"""

import logging
import re
from typing import Any

WORKER_IMPORTS = ("math_verify",)
"""Slow imports that a worker makes before an answer's time begins."""

INTEGER = re.compile(r"-?\d{1,15}", re.ASCII)
ENDS_IN_BOXED_INTEGER = re.compile(r"\\boxed\{(-?\d{1,15})\}[\s$.]*$", re.ASCII)


def grade(response: str, label: str, metadata: dict[str, Any]) -> float:
    r"""1.0 or 0.0. The label is LaTeX without delimiters, or has its own `$…$` or `\boxed{…}`.

    Raises:
        ValueError: math-verify reads nothing in the label.
        Exception: what sympy raises for the label alone. An answer that it can not compare is wrong.
    """
    from math_verify import parse, verify

    # It warns once that its time limits are off, which is meant here.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    text = str(label).strip()
    truth = parse(text if "$" in text or "\\boxed" in text else f"${text}$", parsing_timeout=None)  # type: ignore[arg-type]
    if not truth:
        raise ValueError(f"the label {text[:80]!r} holds nothing that math-verify can read")
    answer = parse(response, parsing_timeout=None)  # type: ignore[arg-type]
    try:
        return float(verify(truth, answer, timeout_seconds=None, raise_on_error=True))
    except Exception:  # sympy raises anything; the label is to blame where it raises for the label alone
        verify(truth, truth, timeout_seconds=None, raise_on_error=True)
        return float(verify(truth, answer, timeout_seconds=None))


def quick(response: str, label: str, metadata: dict[str, Any]) -> float | None:
    """`grade` where label and answer are plain integers, else None."""
    truth = str(label).strip()
    if not INTEGER.fullmatch(truth):
        return None
    answer = response.strip()
    if not INTEGER.fullmatch(answer):
        boxed = ENDS_IN_BOXED_INTEGER.search(answer[-60:])
        # "final answer is" may name another answer than the box, and several boxes are one set
        if not boxed or answer.count("\\boxed") != 1 or "final answer" in answer.lower():
            return None
        answer = boxed.group(1)
    return float(int(answer) == int(truth))
