"""A run as its store has it, for commands that look at it again."""

import json
from pathlib import Path

from infra.errors import ConfigurationError, DownloadFailed
from infra.open_run import absolute
from infra.records.format import RECORDS_VERSION, NotOfTheFormat, record
from infra.records.sources import ModelRef
from infra.run import Run
from infra.scenario.load import validate
from infra.settings import settings
from infra.sources.host import this_host
from infra.sources.model import fetch_model
from infra.store import ArtifactStore


def find_stored(store_uri: str, name: str | None) -> Run:
    """The one run of a store whose id is `name`, or starts or ends with it; without a name the only one there is.

    Raises:
        ConfigurationError: there is none, there are several, or its records are of another version.
    """
    from infra.show import find_run

    uri = absolute(store_uri)
    run_id = find_run(ArtifactStore(uri), name or "")
    key = f"runs/{run_id}/run.json"
    store = ArtifactStore(uri)
    if not store.exists(key):
        raise ConfigurationError(
            f"Run {run_id} has no {key}.", next_step="It holds the run's id and its scenario.", ids=[run_id]
        )
    opened = store.read_json(key)
    version = opened.get("records_version", 1)
    if version != RECORDS_VERSION:
        raise ConfigurationError(
            f"The records of run {run_id} are of version {version}, this fanline reads version {RECORDS_VERSION}.",
            ids=[run_id, version],
        )
    scenario = validate(opened.get("scenario"), key)
    spool: Path = settings().spool_dir / run_id
    return Run(run_id=run_id, scenario=scenario, store_uri=uri, spool=spool)


def model_of(run: Run, uri: str | None = None) -> ModelRef:
    """The model that a run started from, on this host.

    Args:
        uri: where to take it from instead of the scenario's source.
    Raises:
        ConfigurationError: it is not the model that the run's trainer state belongs to.
        DownloadFailed: it could not be fetched.
    """
    model = fetch_model(uri or run.scenario.model.uri, this_host())
    trained = _digest_in_state(run)
    if trained is not None and trained != model.digest:
        raise ConfigurationError(
            f"{model.uri} has digest {model.digest[:12]}, run {run.run_id} was trained from {trained[:12]}.",
            next_step="Name the source as it was then: a revision, or the folder.",
            ids=[run.run_id, model.uri],
        )
    return model


def model_if_there(run: Run, uri: str | None = None) -> ModelRef | None:
    """As `model_of`, None where it can not be fetched: checks that need it then did not run."""
    try:
        return model_of(run, uri)
    except DownloadFailed:
        return None


def _digest_in_state(run: Run) -> str | None:
    """The digest of the model that the trainer's first state names; another stack's state may be anything."""
    try:
        document = run.finished("training", 0)
        if document is None:
            return None
        state = run.store.read_json(record("training", document, "training.json").state)
    except (NotOfTheFormat, json.JSONDecodeError, UnicodeDecodeError):
        return None  # the checks say what is wrong with the record
    return state.get("model") if isinstance(state, dict) else None
