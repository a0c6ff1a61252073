"""GPQA: the chosen letter of a multiple-choice question (Rein et al., arXiv:2311.12022), or the answer's text."""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHOICES = 10
NAMED_LETTER = (
    re.compile(r"(?:answer|option|choice)(?:\s*(?:is|:))?\s*([A-Z])", re.IGNORECASE),
    re.compile(r"([A-Z])\s*is(?:\s*the)?\s*correct", re.IGNORECASE),
)
LONE_LETTER = re.compile(r"\b([A-Z])\b")


def grade(response: str, label: str | int, metadata: dict[str, Any]) -> float:
    """1.0 or 0.0.

    The right letter is `metadata["correct_letter"]`, else the label: a letter, an index (an integer), or the text of
    one of `metadata["choices"]` (list, or mapping in order). Valid are `metadata["valid_letters"]`, else one letter a
    choice, else A to J. A response that names no valid letter is right where it holds the text of the right
    choice, as whole words.

    Example: ("I think the answer is B.", "Capital of France", {"choices": ["London", "Capital of France"]}) -> 1.0
    """
    choices = choices_of(metadata)
    letters = letters_of(metadata, choices)
    right = right_letter(label, metadata, choices, letters)
    text = response.rpartition("</think>")[2]
    chosen = chosen_letter(text, letters)
    if chosen and right:
        return float(chosen == right)
    said = f" {words(text)} "
    return float(any(f" {target} " in said for target in right_texts(label, right, metadata, choices, letters)))


def choices_of(metadata: dict[str, Any]) -> list[str]:
    """The texts of the choices, in order; empty where there are none."""
    choices = metadata.get("choices") or []
    return [str(choice) for choice in (choices.values() if isinstance(choices, Mapping) else choices)]


def letters_of(metadata: dict[str, Any], choices: Sequence[str]) -> list[str]:
    """Letters that may be chosen."""
    given = [str(letter).upper() for letter in metadata.get("valid_letters") or []]
    return given or list(string.ascii_uppercase[: len(choices) or MOST_CHOICES])


def right_letter(
    label: str | int, metadata: dict[str, Any], choices: Sequence[str], letters: Sequence[str]
) -> str | None:
    """The letter of the right choice, or None where only its text is known."""
    if not isinstance(label, str) and 0 <= int(label) < len(letters):
        return letters[int(label)]
    named = metadata.get("correct_letter")
    if isinstance(named, str) and named.strip():
        return named.strip().upper()
    text = str(label).strip()
    if is_letter(text, letters):
        return text.upper()
    same = [letter for letter, choice in zip(letters, choices, strict=False) if words(choice) == words(text)]
    return same[0] if same and text else None


def chosen_letter(text: str, letters: Sequence[str]) -> str | None:
    """The letter that the text names as its answer, else the last valid capital that stands alone."""
    for pattern in NAMED_LETTER:
        match = pattern.search(text)
        if match and match.group(1).upper() in letters:
            return match.group(1).upper()
    alone = [letter for letter in LONE_LETTER.findall(text) if letter in letters]
    return alone[-1] if alone else None


def right_texts(
    label: str | int, right: str | None, metadata: dict[str, Any], choices: Sequence[str], letters: Sequence[str]
) -> set[str]:
    """Texts that count as the right answer where no letter decides; a lone letter is never one."""
    texts = [metadata.get("correct_answer"), metadata.get("answer_text")]
    texts += [choice for letter, choice in zip(letters, choices, strict=False) if letter == right]
    if isinstance(label, str) and not is_letter(label.strip(), letters):
        texts.append(label)
    return {words(str(text)) for text in texts if text} - {""}


def is_letter(text: str, letters: Sequence[str]) -> bool:
    """Whether the text is one of the valid letters."""
    return len(text) == 1 and text.upper() in letters


def words(text: str) -> str:
    """Lower-case letters and digits, one space between words."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


quick = grade
