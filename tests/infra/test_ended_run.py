"""Marks of runs that ended without a verdict, and what may be resumed."""

from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect.client.schemas.objects import State, StateType

from infra.ended_run import finished_stages, latest_end, mark_ended
from infra.errors import ConfigurationError
from infra.open_run import STORE_FILE, _refuse_finished, checked_run_id, run_id_of
from infra.run import Run
from infra.scenario.load import load
from infra.show import show_run
from infra.store import ArtifactStore

FLOW_RUN = UUID("12345678-1234-5678-1234-567812345678")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    monkeypatch.setenv("FANLINE_HOME", str(tmp_path))
    run_id = run_id_of("tiny", FLOW_RUN)
    spool = tmp_path / "spool" / run_id
    run = Run(run_id=run_id, scenario=load("tiny"), store_uri=str(tmp_path / "elsewhere"), spool=spool)
    spool.mkdir(parents=True)
    (spool / STORE_FILE).write_text(run.store_uri)
    run.store.publish_json(run.key("run.json"), {"run": run_id})
    return run


def flow_run_of(run: Run, **parameters):
    given = {"scenario": {"name": "tiny"}, "store": None, **parameters}
    return SimpleNamespace(id=FLOW_RUN, parameters=given, deployment_id=None, parent_task_run_id=None)


def end(run: Run, name: str, **parameters) -> None:
    kind = {"Cancelled": StateType.CANCELLED, "INFRA": StateType.FAILED, "Crashed": StateType.CRASHED}[name]
    mark_ended(None, flow_run_of(run, **parameters), State(name=name, type=kind, message="by a person"))


def test_a_cancelled_run_is_marked_with_what_it_has_finished(run: Run):
    run.finish("rollout", 0, {})
    run.finish("rollout", 1, {})
    run.finish("training", 0, {})
    end(run, "Cancelled")
    ended = latest_end(run.store, run.run_id)
    assert ended and ended["state"] == "Cancelled" and ended["flow_run"] == str(FLOW_RUN)
    assert ended["finished"]["rollout"] == [0, 1] and ended["finished"]["training"] == [0]
    with pytest.raises(ConfigurationError, match=r"no report yet. It ended as Cancelled: by a person.*--resume tiny-"):
        show_run(run.store_uri, run.run_id, as_json=False)


def test_every_attempt_leaves_its_own_mark(run: Run):
    end(run, "Crashed")
    end(run, "Cancelled")
    marks = [k for k in run.store.keys("runs") if k.endswith("ended.json")]
    assert len(marks) == 2
    assert (latest_end(run.store, run.run_id) or {})["state"] == "Cancelled"


def test_a_run_that_never_opened_or_reported_itself_gets_no_mark(run: Run):
    end(run, "INFRA")
    end(run, "Crashed", resume_from="tiny-of-nobody")
    assert latest_end(run.store, run.run_id) is None
    assert finished_stages(ArtifactStore(run.store_uri), "tiny-of-nobody")["rollout"] == []


@pytest.mark.parametrize("given", ["../../etc", "a/b", "", ".", "x" * 200, "tiny-1\n"])
def test_what_is_no_run_id_is_refused_before_it_is_part_of_a_path(run: Run, given: str):
    with pytest.raises(ConfigurationError, match="is no run id"):
        checked_run_id(given)


@pytest.mark.parametrize("verdict", ["PASS", "REGRESSION", "INCONCLUSIVE"])
def test_a_finished_run_is_not_resumed(run: Run, verdict: str):
    run.store.publish_json(run.key("attempts", 1, "summary.json"), {"verdict": verdict})
    with pytest.raises(ConfigurationError, match=f"has its verdict, {verdict}"):
        _refuse_finished(run)


def test_a_run_that_infrastructure_ended_is_resumed(run: Run):
    _refuse_finished(run)
    run.store.publish_json(run.key("attempts", 1, "summary.json"), {"verdict": "INFRA"})
    _refuse_finished(run)
