"""Sums of two to four numbers below ten, to be worked step by step: what the embedded model was trained for."""

import random
from collections.abc import Iterator
from typing import Any

MOST_PARTS = 3


def problems(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of prompt, label and metadata. Row i has 1 + i % 3 additions, so any three rows in turn have every fan-out.

    `metadata["parts"]` holds the prompts of the additions; `{answer}` stands for the answer to the one before.

    Example: 3 + 4 + 5 -> prompt "3+4=", label "12", parts ["3+4=", "{answer}+5="]
    """
    draw = random.Random(f"arithmetic {seed}")
    for row in range(rows):
        first, second, *others = (draw.randrange(10) for _ in range(2 + row % MOST_PARTS))
        parts = [f"{first}+{second}=", *(f"{{answer}}+{other}=" for other in others)]
        yield {"prompt": parts[0], "label": str(first + second + sum(others)), "metadata": {"parts": parts}}
