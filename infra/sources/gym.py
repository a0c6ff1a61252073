"""Prompts that reasoning-gym generates: task, settings and seed are the source, so they are equal everywhere."""

import dataclasses
import json
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from infra.errors import ConfigurationError
from infra.sources.rows import Rows, numbered
from infra.sources.uri import Uri, nearest


def read(source: Uri) -> Rows:
    """Rows of `reasoning-gym://task?size=…&seed=…&setting=…`; every setting of the task is an option.

    Raises:
        ConfigurationError: unknown task or setting (with the nearest name), or a value that the task refuses.
    """
    from reasoning_gym.factory import DATASETS, create_dataset

    if source.place not in DATASETS:
        raise ConfigurationError(
            f"reasoning-gym has no task {source.place!r}.", next_step=nearest(source.place, DATASETS), ids=[source.text]
        )
    settings = {"size": 500, "seed": 0, **source.options}
    source.only_options(*(field.name for field in dataclasses.fields(DATASETS[source.place][1])))  # type: ignore[arg-type]
    try:
        entries = create_dataset(source.place, **settings)
    except (AssertionError, TypeError, ValueError) as cause:
        raise ConfigurationError(f"{source.text}: reasoning-gym refuses it: {cause}", ids=[source.text]) from cause
    rows = numbered(_rows(entries), source.place, source.rows)
    return Rows(revision=f"reasoning-gym {metadata.version('reasoning-gym')}", rows=rows)


def _rows(entries: Any) -> Iterator[dict[str, Any]]:
    for entry in entries:
        plain = json.loads(json.dumps(entry["metadata"], default=str, sort_keys=True))
        yield {"prompt": entry["question"], "label": entry["answer"], "metadata": plain}
