"""`fanline show`: the verdict and the checks of a stored run."""

import json
from typing import Any

from rich.console import Console

from infra.ended_run import latest_end
from infra.errors import ConfigurationError
from infra.store import ArtifactStore
from tasks.report.publish import latest_summary
from tasks.report.terminal import rendered


def find_run(store: ArtifactStore, name: str) -> str:
    """The one run of the store whose id is `name`, or starts or ends with it.

    Raises:
        ConfigurationError: there is none, or more than one.
    """
    runs = sorted({key.split("/")[1] for key in store.keys("runs")})
    found = [r for r in runs if r == name] or [r for r in runs if _begins_or_ends(r, name)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} runs of {store.uri} match {name!r}: {', '.join(found[:10])}." if found else ""
    latest = ", ".join(runs[-5:]) or "none yet"
    raise ConfigurationError(what or f"No run of {store.uri} is called {name!r}.", next_step=f"Runs: {latest}.")


def _begins_or_ends(run_id: str, name: str) -> bool:
    return run_id.startswith(name) or run_id.endswith(name) or run_id.rpartition("-")[2].startswith(name)


def show_run(store_uri: str, name: str, *, as_json: bool) -> dict[str, Any]:
    """Print the latest report of a run, as text for people or as its `summary.json`; returns the summary."""
    store = ArtifactStore(store_uri)
    run_id = find_run(store, name)
    summary = latest_summary(store, run_id)
    if summary is None:
        ended = latest_end(store, run_id)
        raise ConfigurationError(
            f"Run {run_id} has no report yet."
            + (f" It ended as {ended['state']}: {ended['message']}" if ended else " It still runs, or was killed."),
            next_step=f"`fanline run SCENARIO --resume {run_id}` goes on with it.",
            ids=[run_id],
        )
    if as_json:
        print(json.dumps(summary))
    else:
        Console().print(rendered(summary))
    return summary
