"""What a check of a hook found, for people and as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, kw_only=True)
class HookReport:
    """What a generate hook did with a small engine.

    Args:
        faults: why a run with it would be red, in words; none is a hook that may be run.
        notes: what is allowed and worth knowing.
        fan_outs: number of siblings -> rollouts. calls: name of a call -> how often.
        mixed_groups: share of prompt groups whose rewards differ.
    """

    hook: str
    reward: str
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rollouts: int = 0
    fan_outs: dict[int, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    generated_tokens: int = 0
    mean_reward: float | None = None
    mixed_groups: float | None = None

    @property
    def exit_code(self) -> int:
        return 1 if self.faults else 0

    def to_dict(self) -> dict[str, Any]:
        return {"ok": not self.faults, **asdict(self)}


def rendered(report: HookReport) -> RenderableType:
    """The report as text: whether it may be run, why not, and what it did."""
    said, colour = ("REFUSED", "bold red") if report.faults else ("OK", "bold green")
    parts: list[RenderableType] = [Text.assemble((said, colour), f"  {report.hook}")]
    parts += [Text(f"  {words}") for words in report.faults]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    for name, value in _facts(report) if report.rollouts else ():
        table.add_row(name, value)
    return Group(*parts, table, *(Text(f"note: {words}", "yellow") for words in report.notes))


def _facts(report: HookReport) -> list[tuple[str, str]]:
    fan_outs = ", ".join(f"{count} of {n}" for n, count in sorted(report.fan_outs.items()))
    calls = ", ".join(f"{name or 'without a name'} × {count}" for name, count in sorted(report.calls.items()))
    return [
        ("fan-outs", f"{report.rollouts} rollouts: {fan_outs} samples"),
        ("calls", f"{calls or 'none'}; {report.generated_tokens} tokens"),
        (
            "rewards",
            f"mean {report.mean_reward:.3g}, {report.mixed_groups:.0%} of prompt groups mixed ({report.reward})",
        ),
    ]
