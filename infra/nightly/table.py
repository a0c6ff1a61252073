"""A night as a table artifact: a line a scenario."""

from collections.abc import Sequence
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.utilities.urls import url_for

from infra.nightly.judge import Ended, message_of, verdict_of

KEY = "nightly"


def publish_table(ended: Sequence[Ended]) -> None:
    """The artifact `nightly`: verdict, run id, link, seconds and message of each scenario."""
    description = f"**{verdict_of(ended).name}**: {message_of(ended)}"
    create_table_artifact(table=[_row(one) for one in ended], key=KEY, description=description)


def _row(one: Ended) -> dict[str, Any]:
    link = url_for("flow-run", obj_id=one.flow_run_id) if one.flow_run_id else None
    return {
        "scenario": one.scenario,
        "verdict": one.outcome.name + (" (plumbing only)" if one.plumbing_only else ""),
        "run": one.run_id or "",
        "link": link or "",
        "seconds": "" if one.seconds is None else round(one.seconds),
        "message": one.message,
    }
