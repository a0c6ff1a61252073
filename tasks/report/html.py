"""One HTML file of a run that needs no network, script or other file."""

from html import escape
from typing import Any

from tasks.report.markdown import BAD, figure_rows, step_rows

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1c2430}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #d8dee6;vertical-align:top;overflow-wrap:anywhere}
.pass{color:#1a7f37}.fail{color:#b3261e}.inconclusive{color:#8a6100}.infra{color:#6b3fa0}.not-run{color:#6a737d}
h1.PASS{color:#1a7f37}h1.REGRESSION{color:#b3261e}img{max-width:100%}code{font-size:.85em}
"""


def html(summary: dict[str, Any], image: str | None) -> str:
    """The report; everything that comes from the run is escaped.

    Args:
        summary: the content of `summary.json`.
        image: the plot as a data URI.
    """
    verdict, run = escape(summary["verdict"]), escape(summary["run"])
    bad = [c for status in BAD for c in summary["checks"] if c["status"] == status]
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{verdict} {run}</title><style>{STYLE}</style>',
        f'<h1 class="{verdict}">{verdict}</h1><p>{run}: {escape(summary["message"])}</p>',
        "".join(f"<p>Warning: {escape(words)}</p>" for words in summary.get("warnings", ())),
        "".join(f"<p><b>{escape(c['name'])}</b> ({c['status']}): {escape(c['reason'])}</p>" for c in bad),
        f"<p>Ran on the CPU: {summary['ranks']} emulated GPUs.</p>" if summary["emulated_gpus"] else "",
        f'<img alt="reward by iteration and gradient norm by step" src="{image}">' if image else "",
        "<h2>Checks</h2>" + _checks(summary["checks"]),
        "<h2>Steps</h2>" + _table(step_rows(summary)),
        "<h2>Figures</h2>" + _table(figure_rows(summary)) if figure_rows(summary) else "",
        "<h2>Seconds by stage</h2>" + _table([summary["seconds_by_stage"]]),
        "<h2>Versions</h2>" + _table([summary["versions"]]),
        "<h2>Digests</h2>"
        + _table([{n: summary[n] for n in ("weights_digest", "environment_digest", "scenario_digest", "code_digest")}]),
    ]
    return "\n".join(p for p in parts if p) + "</html>\n"


def _checks(checks: list[dict[str, Any]]) -> str:
    rows = [
        f"<tr><td>{escape(c['name'])}<td class={c['status'].replace(' ', '-')}>{c['status']}<td>{escape(c['reason'])}"
        f"<td>{_figures(c['figures'])}<td>{escape(', '.join(map(str, c['ids'])))}"
        for c in checks
    ]
    return "<table><tr><th>check<th>result<th>reason<th>figures<th>ids" + "".join(rows) + "</table>"


def _figures(figures: dict[str, Any]) -> str:
    return "<br>".join(f"{escape(str(name))}: {escape(_text(value))}" for name, value in figures.items())


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows or not rows[0]:
        return "<p>none</p>"
    head = "".join(f"<th>{escape(str(name))}" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(_text(v))}" for v in row.values()) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
