r"""A boxed answer against a label that may be boxed too; what `grade_math` and `grade_deepscaler` share."""

from hooks.rewards.deepscaler_form import evaluate, settle
from hooks.rewards.extract import BOXES, last_boxed


def grade_boxed(text: str, label: str) -> float:
    """1.0 where the last boxed expression of the text equals the label, else 0.0."""
    settled = quick_boxed(text, label)
    return float(evaluate(last_boxed(text) or "", _truth(label) or "")) if settled is None else settled


def quick_boxed(text: str, label: str) -> float | None:
    """The same where the texts alone decide, else None. Nothing boxed, or an empty label, scores 0."""
    answer, truth = last_boxed(text), _truth(label)
    if not str(label) or answer is None or truth is None:
        return 0.0
    settled = settle(answer, truth)
    return None if settled is None else float(settled)


def _truth(label: str) -> str | None:
    text = str(label)
    return last_boxed(text) if any(box in text for box in BOXES) else text
