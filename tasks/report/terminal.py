"""A verdict for people at a terminal: the verdict first, what is wrong in words, then the rest."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tasks.report.markdown import BAD

COLOURS = {"PASS": "green", "REGRESSION": "red", "INFRA": "magenta", "INCONCLUSIVE": "yellow"}
STATUS_COLOURS = {"pass": "green", "fail": "red", "infra": "magenta", "inconclusive": "yellow", "not run": "dim"}


def rendered(summary: dict[str, Any]) -> RenderableType:
    """What `fanline run` and `fanline show` print of a `summary.json`. Example: Console().print(rendered(summary))"""
    parts: list[RenderableType] = [checked(summary)]
    seconds = summary["seconds_by_stage"]
    parts.append(Text("seconds  " + "  ".join(f"{name} {value:.1f}" for name, value in seconds.items()), "dim"))
    parts.append(Text(f"weights  {summary['weights_digest']}", "dim"))
    device = f"CPU, {summary['ranks']} emulated GPUs" if summary["emulated_gpus"] else summary["environment"]["device"]
    parts.append(Text(f"device   {device}", "dim"))
    return Group(*parts)


def checked(verdict: dict[str, Any]) -> Group:
    """The verdict of a run and its checks, those that are red first: what `fanline check` prints."""
    outcome = verdict["verdict"]
    title = Text.assemble((outcome, f"bold {COLOURS[outcome]}"), f"  {verdict['run']}")
    parts: list[RenderableType] = [title, Text(verdict["message"])]
    parts += [Text(f"warning: {words}", "yellow") for words in verdict.get("warnings", ())]
    bad = [c for status in BAD for c in verdict["checks"] if c["status"] == status]
    for c in bad:
        parts.append(Text.assemble(("  " + c["name"], f"bold {STATUS_COLOURS[c['status']]}"), f"  {c['reason']}"))
    return Group(*parts, _checks(verdict["checks"]))


def _checks(checks: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for c in checks:
        reason = "see above" if c["status"] in BAD else c["reason"]
        table.add_row(c["name"], Text(c["status"], STATUS_COLOURS[c["status"]]), Text(reason))
    return table
