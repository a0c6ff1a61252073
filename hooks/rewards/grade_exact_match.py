"""Exact match: the answer is the label, as an integer where both are integers, else as text."""

import re
from typing import Any

from hooks.rewards.extract import without_special_tokens

INTEGER = re.compile(r"([+-]?)(\d+)", re.ASCII)
NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?", re.ASCII)


def grade(response: str, label: str, metadata: dict[str, Any]) -> float:
    """1.0 or 0.0.

    `metadata["hook_options"]["answer"]` says what of the response is the answer: `whole` (default), `first_line`, or
    `last_number` (thousands separators dropped). End-of-answer tokens and outer white space never count.

    Example: ("07\\n", "7") -> 1.0; ("7.0", "7") -> 0.0
    Raises:
        ValueError: an `answer` option that is not one of the three.
    """
    answer = answer_of(response, metadata.get("hook_options", {}).get("answer", "whole"))
    return float(canonical(answer) == canonical(without_special_tokens(str(label))))


def answer_of(response: str, rule: str) -> str:
    """The part of the response that counts as its answer; empty where there is none."""
    text = without_special_tokens(response)
    if rule == "whole":
        return text
    if rule == "first_line":
        return text.partition("\n")[0].strip()
    if rule == "last_number":
        numbers = NUMBER.findall(text)
        return numbers[-1].replace(",", "") if numbers else ""
    raise ValueError(f"hook option answer is {rule!r}; it takes whole, first_line or last_number")


def canonical(text: str) -> str:
    """Integers without plus sign and leading zeros (of any length, so not through `int`); other text unchanged."""
    match = INTEGER.fullmatch(text)
    if not match:
        return text
    digits = match.group(2).lstrip("0") or "0"
    return "-" + digits if match.group(1) == "-" and digits != "0" else digits


quick = grade
