"""A run that an earlier fanline stored, without its tensors: later ones read it, or say which version it is of."""

import json
import tarfile
from pathlib import Path

import pytest

from infra.check_command import results_of
from infra.errors import ConfigurationError
from infra.stored_run import find_stored
from tasks.report.publish import latest_summary

RUN = "tiny-65300a6e03c2"
OF_VERSION_1 = Path(__file__).parent / "run-of-version-1.tar.xz"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tarfile.open(OF_VERSION_1) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_run_of_version_1_is_checked_to_the_results_of_its_day(store: Path):
    run = find_stored(str(store), RUN)
    summary = latest_summary(run.store, run.run_id)
    assert summary is not None
    found = {result.name: (result.status, result.reason) for result in results_of(run, [], None, summary=summary)}
    stored = {check["name"]: (check["status"], check["reason"]) for check in summary["checks"]}
    assert {name: found[name][0] for name in stored} == {name: status for name, (status, _) in stored.items()}
    assert found["ledger"] == stored["ledger"]
    assert found["counter"] == stored["counter"]
    assert sum(status == "pass" for status, _ in stored.values()) == 10


def test_a_run_of_a_later_version_is_refused_with_both_versions(store: Path):
    path = store / "runs" / RUN / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "records_version": 2}))
    with pytest.raises(ConfigurationError, match="of version 2, this fanline reads version 1"):
        find_stored(str(store), RUN)
