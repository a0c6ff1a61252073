"""How a cost grows from one size to the next."""

from collections.abc import Sequence
from itertools import pairwise


def growth(seconds: Sequence[float]) -> list[float]:
    """[sizes - 1] what each size costs over the one before; a linear cost grows as the sizes do."""
    return [round(b / a, 2) for a, b in pairwise(seconds)]
