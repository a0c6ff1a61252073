r"""DeepScaleR: the last `\boxed{}` behind `</think>` (or `###Response`) against the label."""

from typing import Any

from hooks.rewards.boxed import grade_boxed, quick_boxed
from hooks.rewards.extract import behind_thinking

WORKER_IMPORTS = ("hooks.rewards.expression",)
"""Slow imports that a worker makes before an answer's time begins."""


def grade(response: str, label: str, metadata: dict[str, Any]) -> float:
    """1.0 or 0.0.

    A response with neither `</think>` nor `###Response` scores 0, whatever it says: a model that writes neither can
    not be trained with this grader. An empty label, or a boxed one whose braces do not balance, scores 0.
    """
    return grade_boxed(behind_thinking(response) or "", label)


def quick(response: str, label: str, metadata: dict[str, Any]) -> float | None:
    """`grade` where no symbolic comparison is needed, else None."""
    return quick_boxed(behind_thinking(response) or "", label)
