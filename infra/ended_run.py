"""Marks of runs that ended without a verdict: what is in the store of them is partial, and says so."""

from typing import Any

from infra.notices.tell import tell_crash
from infra.open_run import STORE_FILE, absolute, checked_run_id, run_id_of
from infra.settings import settings
from infra.store import ArtifactStore
from tasks.report.publish import ATTEMPTS, attempts

STAGES = ("rollout", "reward_normalization", "training", "sync", "evaluation", "replay")


def mark_ended(flow: Any, flow_run: Any, state: Any) -> None:
    """Prefect's hook for cancelled and crashed flow runs: publish how the run ended, beside what it has finished, and
    tell of a crash.

    Called in the process that started the run, which may have another store. A run that ended as INFRA has a report of
    its own: its verdict says more.
    """
    resumed = flow_run.parameters.get("resume_from")
    scenario = _name(flow_run.parameters["scenario"])
    run_id = checked_run_id(resumed) if resumed else run_id_of(scenario, flow_run.id)
    said = settings().spool_dir / run_id / STORE_FILE
    # Of a run that never opened, or on another host, there is nothing to mark; that it crashed is told all the same.
    uri = said.read_text() if said.exists() else flow_run.parameters.get("store") or settings().store_uri
    store = ArtifactStore(absolute(uri))
    if said.exists():
        _mark(store, run_id, flow_run, state)
    tell_crash(store, scenario, run_id, flow_run, state)


def _mark(store: ArtifactStore, run_id: str, flow_run: Any, state: Any) -> None:
    if not store.exists(f"runs/{run_id}/run.json") or state.name == "INFRA":
        return
    record = {"flow_run": str(flow_run.id), "state": state.name, "message": state.message or ""}
    where = f"runs/{run_id}/{ATTEMPTS}/{attempts(store, run_id) + 1:04d}/ended.json"
    store.publish_json(where, {**record, "finished": finished_stages(store, run_id)})


def finished_stages(store: ArtifactStore, run_id: str) -> dict[str, list[int]]:
    """The iterations, by stage, whose record is in the store."""
    prefix = f"runs/{run_id}/iterations/"
    done: dict[str, list[int]] = {stage: [] for stage in STAGES}
    for key in store.keys(prefix.rstrip("/")):
        iteration, _, name = key.removeprefix(prefix).partition("/")
        if (stage := name.removesuffix(".json")) in done:
            done[stage].append(int(iteration))
    return done


def latest_end(store: ArtifactStore, run_id: str) -> dict[str, Any] | None:
    """How the last attempt ended that had no verdict; None where there was none."""
    keys = [k for k in store.keys(f"runs/{run_id}/{ATTEMPTS}") if k.endswith("/ended.json")]
    return store.read_json(keys[-1]) if keys else None


def _name(scenario: Any) -> str:
    return scenario["name"] if isinstance(scenario, dict) else scenario.name
