"""Open a run: its id, its store, and the first object in it."""

import hashlib
import re
import sys
from pathlib import Path

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from infra.errors import ConfigurationError
from infra.hook_loading import load_scenario_hooks, source_files
from infra.pool.need import refuse_too_many_gpus
from infra.records.format import RECORDS_VERSION
from infra.run import Run
from infra.run_lock import hold
from infra.scenario.model import Scenario
from infra.scenario.review import refuse_unsupported, warnings_of
from infra.settings import settings
from infra.store import canonical_json, sha256
from tasks.report.publish import latest_summary

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
STORE_FILE = "store"  # in a run's spool folder: where the run's store is, for whoever has to say how it ended
ROOT = Path(__file__).resolve().parent.parent


def code_digest() -> str:
    """sha256 over the Python files of fanline itself."""
    digest = hashlib.sha256()
    for folder in ("flows", "tasks", "hooks", "infra"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def absolute(store_uri: str) -> str:
    """A store's URI that means the same from every folder."""
    return store_uri if "://" in store_uri else str(Path(store_uri).absolute())


def run_id_of(scenario_name: str, flow_run_id: object) -> str:
    """The id of the run that a flow run opens; a retry of the same flow run has the same."""
    return f"{scenario_name}-{str(flow_run_id).replace('-', '')[-12:]}"


def checked_run_id(given: str) -> str:
    """A run id that somebody has typed: it becomes part of paths, so it has to look like one.

    Raises:
        ConfigurationError: it does not.
    """
    if RUN_ID.fullmatch(given) is None:
        raise ConfigurationError(f"{given!r} is no run id.", next_step="`fanline show` lists the ids there are.")
    return given


def open_run(scenario: Scenario, store: str | None, resume_from: str | None) -> Run:
    """The run of the current flow run; a retry of the same flow run opens the same run again.

    Raises:
        StoreUnavailable: the store does not pass its probe.
        ConfigurationError: the scenario asks for what this stack does not do or for more GPUs than there are, a hook
            does not load, or `resume_from` names a run of another scenario or of other code, or one with a verdict.
        InfraFault: another process of this host works on the run.
    """
    refuse_unsupported(scenario)
    for words in warnings_of(scenario):
        get_run_logger().warning(words)  # the command line has its own and keeps this one from its console
    refuse_too_many_gpus(scenario, settings())
    hooks = load_scenario_hooks(scenario, settings().hook_packages)
    own = run_id_of(scenario.name, flow_run.get_id())
    run_id = own if resume_from is None else checked_run_id(resume_from)
    spool = settings().spool_dir / run_id
    run = Run(run_id=run_id, scenario=scenario, store_uri=absolute(store or settings().store_uri), spool=spool)
    run.store.probe()
    hold(run_id, spool)
    (spool / STORE_FILE).write_text(run.store_uri)
    print(f"fanline: run {run_id} in {run.store_uri}", file=sys.stderr, flush=True)
    document = scenario.model_dump(mode="json")
    opened = {"run": run_id, "scenario": document, "scenario_digest": sha256(canonical_json(document))}
    opened["records_version"] = RECORDS_VERSION
    opened["code_digest"] = code_digest()
    opened["hooks_digest"] = sha256(b"\0".join(path.read_bytes() for path in source_files(hooks)))
    key = run.key("run.json")
    if run.store.exists(key):
        _refuse_other_inputs(run_id, run.store.read_json(key), opened)
        if run_id != own:
            _refuse_finished(run)
    elif resume_from:
        raise ConfigurationError(f"There is no run {run_id} in {run.store_uri} to resume.", ids=[run_id])
    else:
        run.store.publish_json(key, opened)
    return run


def _refuse_other_inputs(run_id: str, before: dict, now: dict) -> None:
    changed = [name for name in ("scenario_digest", "code_digest", "hooks_digest") if before[name] != now[name]]
    if changed:
        raise ConfigurationError(
            f"Run {run_id} was started with another {' and '.join(c.split('_')[0] for c in changed)}.",
            next_step="Start a new run: results of other inputs are never reused.",
            ids=[run_id],
        )


def _refuse_finished(run: Run) -> None:
    summary = latest_summary(run.store, run.run_id)
    if summary and summary["verdict"] != "INFRA":
        raise ConfigurationError(
            f"Run {run.run_id} has its verdict, {summary['verdict']}: a finished run is never another one's.",
            next_step=f"Start a new run; `fanline check {run.run_id}` looks at its records again.",
            ids=[run.run_id],
        )
