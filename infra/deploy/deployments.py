"""The deployments that a scenario matrix stands for, as `prefect.yaml` has them."""

from typing import Any

from infra.deploy.matrix import Entry, Matrix, Nightly
from infra.scenario.load import load
from infra.store import canonical_json, sha256

FORMAT = 1  # raised when deployments of an older fanline can no longer be updated in place
REGRESSION_FLOW, NIGHTLY_FLOW = "fanout-regression", "fanout-nightly"
ENTRYPOINTS = {
    REGRESSION_FLOW: "flows.fanout_regression.fanout_regression",
    NIGHTLY_FLOW: "flows.fanout_nightly.fanout_nightly",
}
NIGHTLY_NAME = "nightly"
TAG = "fanline"  # every deployment of a matrix has it


def versioned(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a `version` that changes whenever anything else in it does: `1.5d41402a`."""
    return {**document, "version": f"{FORMAT}.{sha256(canonical_json(document))[:8]}"}


def deployments(matrix: Matrix) -> list[dict[str, Any]]:
    """One document a scenario, and the nightly's."""
    scenarios = [_scenario(name, entry) for name, entry in matrix.scenarios.items()]
    return [versioned(document) for document in (*scenarios, _nightly(matrix, matrix.nightly))]


def _scenario(name: str, entry: Entry) -> dict[str, Any]:
    scenario, labels = load(name), entry.labels.model_dump(exclude_none=True)
    asked = {name: value for name, value in {"gpus": entry.gpus, "labels": labels}.items() if value}
    accelerator = [f"accelerator-{entry.labels.accelerator}"] if entry.labels.accelerator else []
    nightly = ["nightly"] if entry.nightly else []
    return {
        "name": name,
        "description": scenario.description,
        "entrypoint": ENTRYPOINTS[REGRESSION_FLOW],
        "tags": sorted({TAG, f"gpus-{entry.gpus}", *accelerator, *entry.tags, *nightly}),
        "work_pool": {
            "name": entry.pool,
            "work_queue_name": entry.queue,
            "job_variables": asked,
        },
        "schedules": [],
        "parameters": {"scenario": scenario.model_dump(mode="json")},
    }


def _nightly(matrix: Matrix, nightly: Nightly) -> dict[str, Any]:
    return {
        "name": NIGHTLY_NAME,
        "description": f"Every night: {', '.join(matrix.every_night)}, and one verdict over them.",
        "entrypoint": ENTRYPOINTS[NIGHTLY_FLOW],
        "tags": [TAG, "nightly"],
        "work_pool": {"name": nightly.pool, "work_queue_name": nightly.queue, "job_variables": {}},
        "schedules": [{"cron": nightly.cron, "timezone": nightly.timezone}],
        "parameters": {
            "scenarios": matrix.every_night,
            "queue": nightly.children_queue,
            "stale_after_hours": nightly.stale_after_hours,
        },
    }
