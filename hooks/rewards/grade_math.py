r"""MATH: the last `\boxed{}` of the response against the label; no thinking tag is asked for."""

from typing import Any

from hooks.rewards.boxed import grade_boxed, quick_boxed

WORKER_IMPORTS = ("hooks.rewards.expression",)
"""Slow imports that a worker makes before an answer's time begins."""


def grade(response: str, label: str, metadata: dict[str, Any]) -> float:
    """1.0 or 0.0: equal in the normal form of MATH (`hendrycks`), or as DeepScaleR compares (`deepscaler_form`)."""
    return grade_boxed(response, label)


def quick(response: str, label: str, metadata: dict[str, Any]) -> float | None:
    """`grade` where no symbolic comparison is needed, else None."""
    return quick_boxed(response, label)
