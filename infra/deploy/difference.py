"""What would change on a server: field by field, in words. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from infra.deploy.wanted import Wanted

SHOWN_CHARACTERS = 100
ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    """One field, by its dotted path, as it is and as it will be."""

    path: str
    before: Any
    after: Any

    def in_words(self) -> str:
        return f"{self.path}: {_short(self.before)} -> {_short(self.after)}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """An object that has to be created or updated."""

    wanted: Wanted
    action: Literal["create", "update"]
    fields: tuple[FieldChange, ...]

    def to_dict(self) -> dict[str, Any]:
        changed = [{"path": f.path, "before": f.before, "after": f.after} for f in self.fields]
        return {"action": self.action, "kind": self.wanted.kind, "name": self.wanted.name, "fields": changed}


def change_of(wanted: Wanted, current: Mapping[str, Any] | None) -> Change | None:
    """The change that makes `current` what is wanted; None where nothing differs.

    Args:
        current: the same fields as the server has them, None where the object is not there.
    """
    if current is None:
        return Change(wanted=wanted, action="create", fields=())
    fields = tuple(
        found for name, value in wanted.fields.items() for found in differences(name, current.get(name), value)
    )
    return Change(wanted=wanted, action="update", fields=fields) if fields else None


def differences(path: str, before: Any, after: Any) -> list[FieldChange]:
    """Where two JSON values differ, down to the innermost field that does."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = sorted({*before, *after}, key=str)
        return [
            found
            for name in names
            for found in differences(f"{path}.{name}", before.get(name, ABSENT), after.get(name, ABSENT))
        ]
    return [] if before == after else [FieldChange(path=path, before=before, after=after)]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
