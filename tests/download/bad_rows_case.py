"""The case of bad rows."""

import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent.parent / "cases" / "budget.json"


def budget_7() -> dict[str, Any]:
    return next(case for case in json.loads(CASES.read_text()) if case["id"] == "budget-7")
