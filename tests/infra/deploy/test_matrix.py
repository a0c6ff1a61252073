from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.deploy.deployments import deployments
from infra.deploy.matrix import MATRIX, load_matrix
from infra.errors import ConfigurationError
from infra.pool.worker_config import GpuVariables
from infra.scenario.load import names


def test_every_scenario_of_the_catalog_has_a_deployment():
    assert sorted(load_matrix().scenarios) == names()


@pytest.mark.parametrize(
    ("section", "field", "value", "words"),
    [
        ("scenarios", "tiny", {"gpus": 1, "pool": "gpu-4", "queue": "runs"}, "2 trainer ranks, 1 GPUs are too few"),
        ("scenarios", "teeny", {"gpus": 1, "pool": "gpu-4", "queue": "runs"}, "no scenario 'teeny'"),
        ("scenarios", "tiny", {"gpus": 2, "pool": "gpu-5", "queue": "runs"}, "no pool 'gpu-5'"),
        ("scenarios", "tiny", {"gpus": 2, "pool": "gpu-4", "queue": "fast"}, "has no queue fast"),
        ("scenarios", "tiny", {"gpus": 2, "pool": "gpu-4", "queue": "runs", "ci_label": "it's"}, "ci_label"),
        ("scenarios", "tiny", {"gpus": 2, "pool": "gpu-4", "queue": "runs", "labels": {"is": "red"}}, "labels.is"),
        ("nightly", "timezone", "Europe/Atlantis", "no time zone 'Europe/Atlantis'"),
        ("nightly", "cron", "every night", "cron"),
        ("nightly", "stale_after_hours", 0, "greater than 0"),
        ("ci", "queue", "nowhere", "has no queue nowhere"),
    ],
)
def test_a_matrix_that_does_not_hold_together_is_refused(
    section: str, field: str, value: Any, words: str, tmp_path: Path
):
    document = yaml.safe_load(MATRIX.read_text())
    document[section][field] = value
    with pytest.raises(ConfigurationError, match=words):
        load_matrix(written(document, tmp_path))


def test_labels_of_a_scenario_are_asked_of_the_host_and_seen_in_its_tags(tmp_path: Path):
    document = yaml.safe_load(MATRIX.read_text())
    document["scenarios"]["tiny"]["labels"] = {"accelerator": "h200", "memory": 80}
    made = {one["name"]: one for one in deployments(load_matrix(written(document, tmp_path)))}
    tiny, other = made["tiny"], made["fanout-signal"]
    assert tiny["work_pool"]["job_variables"] == {"gpus": 2, "labels": {"accelerator": "h200", "memory": 80.0}}
    assert "accelerator-h200" in tiny["tags"]
    assert "labels" not in other["work_pool"]["job_variables"]
    GpuVariables.model_validate(tiny["work_pool"]["job_variables"])  # the pool's form


def test_a_night_without_scenarios_is_refused(tmp_path: Path):
    document = yaml.safe_load(MATRIX.read_text())
    for entry in document["scenarios"].values():
        entry["nightly"] = False
    with pytest.raises(ConfigurationError, match="would always pass"):
        load_matrix(written(document, tmp_path))


@pytest.mark.parametrize("priorities", [(1, 1), (1, 3), (2, 3)])
def test_priorities_are_an_order(priorities: tuple[int, int], tmp_path: Path):
    document = yaml.safe_load(MATRIX.read_text())
    for queue, priority in zip(document["pools"]["cpu"]["queues"].values(), priorities, strict=True):
        queue["priority"] = priority
    with pytest.raises(ConfigurationError, match="once each"):
        load_matrix(written(document, tmp_path))


def written(document: dict[str, Any], folder: Path) -> Path:
    path = folder / "matrix.yaml"
    path.write_text(yaml.safe_dump(document))
    return path
