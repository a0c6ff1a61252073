"""Answers whose grade is known, for every shipped grader: (response, label, metadata, whether it is right)."""

from typing import Any

Canary = tuple[str, str, dict[str, Any], bool]


def _pair(right: str, wrong: str, label: str, **metadata: Any) -> tuple[Canary, ...]:
    return ((right, label, metadata, True), (wrong, label, metadata, False))


CANARIES: dict[str, tuple[Canary, ...]] = {
    "hooks.rewards.exact_match": _pair("7", "8", "7"),
    "hooks.rewards.deepscaler": _pair("<think>3+4</think>\\boxed{7}", "<think>3+4</think>\\boxed{8}", "7"),
    "hooks.rewards.math": _pair("It is \\boxed{7}.", "It is \\boxed{8}.", "7"),
    "hooks.rewards.dapo": _pair("Answer: 7", "Answer: 8", "7"),
    "hooks.rewards.f1": _pair("red apple", "blue pear", "red apple"),
    "hooks.rewards.gpqa": _pair("Answer: C", "Answer: B", "C"),
    "hooks.rewards.math_verify": _pair("\\boxed{7}", "\\boxed{8}", "7"),
}
