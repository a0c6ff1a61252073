"""What a check found wrong, in words a stranger understands, with the ids."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from infra.records.verdict import CheckResult

SHOWN = 5  # findings spelled out in a reason; the figures give the number of all


@dataclass
class Findings:
    """Collects what is wrong; no finding is a pass."""

    words: list[str] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)

    def add(self, words: str, *ids: Any) -> None:
        if words not in self.words:
            self.words.append(words)
        self.add_ids(ids)

    def add_ids(self, ids: Iterable[Any]) -> None:
        self.ids += [i for i in ids if i not in self.ids]

    def result(self, name: str, good: str, figures: dict[str, Any] | None = None) -> CheckResult:
        """`pass` with the words of `good`, or `fail` with the first findings and the number of the rest."""
        figures = {**(figures or {}), "findings": len(self.words)}
        if not self.words:
            return CheckResult(name=name, status="pass", reason=good, figures=figures)
        more = f"; and {len(self.words) - SHOWN} more" if len(self.words) > SHOWN else ""
        reason = "; ".join(self.words[:SHOWN]) + more
        return CheckResult(name=name, status="fail", reason=reason, figures=figures, ids=tuple(self.ids))
