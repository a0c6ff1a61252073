"""The models that fanline brings along, checked against the digest noted when they were made."""

import json
from pathlib import Path

from infra.errors import ConfigurationError
from infra.sources.digest import model_digest
from infra.sources.uri import nearest

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.name.removesuffix(".digest.json") for path in HERE.glob("*.digest.json"))


def folder(name: str) -> tuple[Path, str]:
    """Folder and revision (the first half of the digest) of an embedded model.

    Raises:
        ConfigurationError: there is no such model, or its files were changed.
    """
    if name not in names():
        raise ConfigurationError(f"There is no embedded model {name!r}.", next_step=nearest(name, names()), ids=[name])
    noted = json.loads((HERE / f"{name}.digest.json").read_text())["digest"]
    found = model_digest(HERE / name)
    if found != noted:
        raise ConfigurationError(
            f"The embedded model {name} has digest {found[:12]}, it was shipped with {noted[:12]}.",
            next_step="Restore its files from the repository or install fanline again.",
            ids=[name],
        )
    return HERE / name, noted[:32]
