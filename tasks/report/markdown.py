"""The summary as Markdown for Prefect's page: verdict first, failing checks in words, then the tables."""

from collections.abc import Sequence
from typing import Any

from infra.text import shown

MARKS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "infra": "🔌", "not run": "➖"}
BAD = ("fail", "infra", "inconclusive")
LONGEST = 500


def markdown(summary: dict[str, Any], image: str | None = None) -> str:
    """The page of one run.

    Args:
        summary: the content of `summary.json`.
        image: the plot as a data URI.
    """
    parts = [f"# {summary['verdict']} — {summary['run']}", _cell(summary["message"]), *_causes(summary["checks"])]
    parts += [f"> **Warning:** {_cell(words)}" for words in summary.get("warnings", ())]
    if summary["emulated_gpus"]:
        parts.append(f"*Ran on the CPU: {summary['ranks']} emulated GPUs.*")
    if image:
        parts.append(f"![reward and gradient norm]({image})")
    parts += ["## Checks", table([_check(c) for c in summary["checks"]])]
    if summary["iterations"]:
        parts += ["## Steps", table(step_rows(summary)), table(figure_rows(summary))]
    parts += ["## Seconds by stage", table([summary["seconds_by_stage"]] if summary["seconds_by_stage"] else [])]
    facts = {name: summary[name] for name in ("weights_digest", "environment_digest", "scenario_digest", "code_digest")}
    parts += ["## Digests", table([{"what": n, "sha256": v} for n, v in facts.items()])]
    parts += ["## Versions", table([summary["versions"]])]
    return "\n\n".join(p for p in parts if p) + "\n"


def _causes(checks: Sequence[dict[str, Any]]) -> list[str]:
    bad = [c for status in BAD for c in checks if c["status"] == status]
    return ["\n".join(f"- **{c['name']}** ({c['status']}): {_cell(c['reason'])}" for c in bad)] if bad else []


def _check(check: dict[str, Any]) -> dict[str, Any]:
    mark = f"{MARKS[check['status']]} {check['status']}"
    return {"check": check["name"], "result": mark, "reason": check["reason"], "ids": _ids(check["ids"])}


def _ids(ids: Sequence[Any], most: int = 10) -> str:
    return ", ".join(map(str, ids[:most])) + (f" and {len(ids) - most} more" if len(ids) > most else "")


def step_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a step, with its iteration's reward."""
    names = ("loss", "gradient_norm", "clip_fraction", "max_ratio_error", "approx_kl", "tokens")
    return [
        {"iteration": i["iteration"], "reward": i["reward"], "step": s["step"], **{n: s[n] for n in names}}
        for i in summary["iterations"]
        for s in i["steps"]
    ]


def figure_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each figure of each iteration: of filters and the scenario's log hook."""
    return [
        {"iteration": i["iteration"], "figure": name, "value": value}
        for i in summary["iterations"]
        for name, value in i.get("figures", {}).items()
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table; cells are text in one line."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(_cell(_figure(row[name])) for name in head)} |" for row in rows]
    return "\n".join(lines)


def _figure(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else shown(value)


def _cell(value: Any) -> str:
    """Text that stays one cell and that no ledger, hook or data set can turn into markup."""
    text = "" if value is None else str(value)
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    return text.replace("|", "\\|").replace("[", "\\[").replace("`", "\\`")
