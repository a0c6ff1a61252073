"""`fanline bench`: what the pure parts cost here beside a reference in the same run; how often a clean run is red."""

import importlib
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from infra.errors import ConfigurationError

BENCHES = (
    *("schedule", "normalise", "grade", "loss"),
    *("training", "rollout", "iteration", "gpu"),
    *("clean", "overhead", "pool"),
)


def run_bench(name: str, sizes: str | None) -> dict[str, Any]:
    """The figures of one bench.

    Args:
        sizes: numbers with commas between: samples (schedule, normalise), tokens (loss, training), samples at a time
            (rollout, gpu), rollouts (iteration), seeds (clean), rounds (overhead), runs (pool), or integer and symbolic
            answers (grade); its own by default.
    Raises:
        ConfigurationError: no such bench, or sizes that are none.
    """
    if name not in BENCHES:
        raise ConfigurationError(f"There is no bench {name!r}.", next_step=f"There are {', '.join(BENCHES)}.")
    run = importlib.import_module(f"infra.bench.{name}").run
    if sizes is None:
        return run()
    numbers = _numbers(sizes)
    if name != "grade":
        return run(sizes=numbers)
    if len(numbers) != 2:
        raise ConfigurationError("The sizes of bench grade are two: integer answers, symbolic answers.")
    return run(integers=numbers[0], symbolic=numbers[1])


def _numbers(text: str) -> list[int]:
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"--sizes {text}: expected whole numbers above 0, for example 1000,10000.")
    return [int(part) for part in parts]


def rendered(name: str, figures: dict[str, Any]) -> RenderableType:
    """The figures as tables: one for each list of rows, names and values else."""
    parts: list[RenderableType] = [Text(f"bench {name}", "bold")]
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in _flat(figures):
        if isinstance(value, list) and value and isinstance(value[0], dict):
            parts += [] if key == "sizes" else [Text(key, "dim")]
            parts.append(_by_size([dict(_flat(row)) for row in value]))
        else:
            table.add_row(key, _shown(value))
    return Group(*parts, table)


def _by_size(rows: list[dict[str, Any]]) -> Table:
    """Figures down, sizes across: there are more figures than sizes."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for figure in dict.fromkeys(name for row in rows for name in row):
        table.add_row(figure, *(_shown(row[figure]) if figure in row else "" for row in rows))
    return table


def _flat(figures: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name} ")
        else:
            yield f"{above}{name}".replace("_", " "), value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "  ".join(map(_shown, value))
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
