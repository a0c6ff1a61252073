"""Figures and ids as text for people: Prefect's table artifacts turn NaN into null and break on infinity."""

import json
import math
from typing import Any


def shown(value: Any) -> Any:
    """A value for a table: numbers that JSON has stay numbers, NaN, infinity and containers become text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return json.dumps(finite(value), ensure_ascii=False, default=str)


def finite(value: Any) -> Any:
    """The same value with every NaN and infinity as text, so that it is JSON; tuples become lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value
