"""The report's files in the store. A rerun of the report gets a new attempt: nothing published is overwritten."""

from dataclasses import dataclass
from typing import Any

from infra.run import Run
from infra.store import ArtifactStore, ObjectRef
from tasks.report.html import html
from tasks.report.junit import junit
from tasks.report.plot import data_uri

ATTEMPTS = "attempts"


@dataclass(frozen=True, kw_only=True)
class Published:
    """Where the report of one attempt is."""

    summary: ObjectRef
    html: ObjectRef
    junit: ObjectRef
    plot: ObjectRef


def publish(run: Run, summary: dict[str, Any], image: bytes) -> Published:
    """Publish summary, HTML, JUnit XML and plot; the summary last, so that where it is, the others are."""
    where = run.key(ATTEMPTS, attempts(run.store, run.run_id) + 1)
    store = run.store
    page = store.publish(f"{where}/report.html", html(summary, data_uri(image)).encode())
    tests = store.publish(f"{where}/junit.xml", junit(summary))
    plot = store.publish(f"{where}/plot.png", image)
    return Published(summary=store.publish_json(f"{where}/summary.json", summary), html=page, junit=tests, plot=plot)


def attempts(store: ArtifactStore, run_id: str) -> int:
    """The highest number of an attempt that published a report or its end, 0 where none has."""
    prefix = f"runs/{run_id}/{ATTEMPTS}"
    return max((int(key[len(prefix) + 1 :].split("/")[0]) for key in store.keys(prefix)), default=0)


def latest_summary(store: ArtifactStore, run_id: str) -> dict[str, Any] | None:
    """The summary of the last attempt that has one, None where the run has no report."""
    keys = [k for k in store.keys(f"runs/{run_id}/{ATTEMPTS}") if k.endswith("/summary.json")]
    return store.read_json(keys[-1]) if keys else None
