"""Load a scenario by name or file, with overrides from the command line, and say what is wrong with it in words."""

import difflib
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from infra.errors import ConfigurationError
from infra.scenario.model import Scenario

CATALOG = Path(__file__).parent / "catalog"


def names() -> list[str]:
    """The scenarios that come with fanline."""
    return sorted(p.stem for p in CATALOG.glob("*.yaml"))


def load(name_or_file: str, overrides: list[str] | None = None) -> Scenario:
    """A validated scenario.

    Args:
        name_or_file: a catalog name (`tiny`) or the path of a YAML file.
        overrides: `section.field=value`, values in YAML (`rollout.prompts=8`, `model=embedded://tiny`).
    Raises:
        ConfigurationError: unknown scenario or field (with the nearest name), or a value out of its bounds.
    """
    path = Path(name_or_file) if name_or_file.endswith((".yaml", ".yml")) else CATALOG / f"{name_or_file}.yaml"
    if not path.is_file():
        raise ConfigurationError(f"There is no scenario {name_or_file!r}.", next_step=_nearest(name_or_file, names()))
    try:
        document = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise ConfigurationError(f"{path.name} is not YAML: {cause}") from cause
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path.name} holds no scenario: its top level has no fields.")
    for override in overrides or []:
        set_field(document, override)
    return validate(document, path.name)


def validate(document: Any, where: str) -> Scenario:
    try:
        return Scenario.model_validate(document)
    except ValidationError as cause:
        lines = [_in_words(e) for e in cause.errors()]
        raise ConfigurationError(f"Scenario {where} is not valid:\n  " + "\n  ".join(lines)) from cause


def set_field(document: dict[str, Any], override: str) -> None:
    """Put one `section.field=value` into a document.

    Raises:
        ConfigurationError: it is not of that form, or goes through something that has no fields.
    """
    path, separator, text = override.partition("=")
    if not separator:
        raise ConfigurationError(f"--set {override}: expected section.field=value.")
    *sections, field = path.strip().split(".")
    for section in sections:
        inner = document.setdefault(section, {})
        if not isinstance(inner, str | dict):
            raise ConfigurationError(f"--set {override}: {section} is a value, it has no fields.")
        document[section] = inner = {"uri": inner} if isinstance(inner, str) else inner
        document = inner
    try:
        document[field] = yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise ConfigurationError(f"--set {override}: {text!r} is not a YAML value.") from cause


def _in_words(error: Any) -> str:
    path = [str(p) for p in error["loc"]]
    where = ".".join(path) or "the document"
    if error["type"] != "extra_forbidden":
        return f"{where}: {error['msg']}" + (
            f" (got {error['input']!r})" if path and error["type"] != "missing" else ""
        )
    model: Any = Scenario
    for name in path[:-1]:
        annotation = model.model_fields[name].annotation
        model = next((a for a in get_args(annotation) if a is not NoneType), annotation)  # a section may be left out
    return f"{where}: there is no such field. {_nearest(path[-1], list(model.model_fields))}"


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."
