"""A data set by its source: rows with columns, not yet prompts."""

from collections.abc import Callable

from infra.errors import ConfigurationError
from infra.sources import files, gym, hub_rows
from infra.sources.embedded import arithmetic
from infra.sources.host import Host
from infra.sources.rows import Rows, numbered
from infra.sources.uri import LOCAL, Uri, nearest, parse, unknown_scheme


def read_data(uri: str, host: Host) -> Rows:
    """Read the rows of a data source, in its order; rows that can not be read are among them, with the reason.

    Raises:
        ConfigurationError: no such kind of source, file, repository, revision, task or option.
        DownloadFailed: it could not be fetched, or what landed is not what was published.
    """
    source = parse(uri)
    kinds: dict[str, Callable[[Uri, Host], Rows]] = {
        "hf": hub_rows.read,
        "s3": lambda source, host: files.read(source),
        "reasoning-gym": lambda source, host: gym.read(source),
        "embedded": _embedded,
        LOCAL: lambda source, host: files.read(source),
    }
    if source.scheme not in kinds:
        raise unknown_scheme(source, "data", kinds)
    return kinds[source.scheme](source, host)


def _embedded(source: Uri, host: Host) -> Rows:
    if source.place != "arithmetic":
        raise ConfigurationError(
            f"There is no embedded data set {source.place!r}.", next_step=nearest(source.place, ["arithmetic"])
        )
    source.only_options("rows", "seed")
    problems = arithmetic.problems(whole(source, "rows", 64), whole(source, "seed", 0))
    return Rows(revision="1", rows=numbered(problems, source.place, source.rows))


def whole(source: Uri, option: str, default: int) -> int:
    """An option that has to be a whole number."""
    value = source.options.get(option, default)
    if not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{source.text}: {option} has to be a whole number, not {value!r}.")
    return value
