"""The known cases of tests/cases: what goes in and what has to come out, by id."""

import copy
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cases"
NOT_YET = {"budget-3": "there is no asynchronous producer yet, as the case's own note says"}


def _read() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(FOLDER.glob("*.json")):
        held = json.loads(file.read_text())
        found |= held if isinstance(held, dict) else {entry["id"]: entry for entry in held}
    return found


CASES = _read()


def case(name: str) -> Any:
    """One known case, for the test to use as it likes."""
    return copy.deepcopy(CASES[name])


def numbers_in(words: str) -> list[int]:
    """Of a case that says them in words: `fan-out 1 2 3 1` -> [1, 2, 3, 1]."""
    return [int(number) for number in re.findall(r"\d+", words)]
