"""Moments of a run that can be seen from outside: what has to be there, and what must not be there yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.store import ArtifactStore


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A run as seen from outside: its store and its spool, before its id is known.

    Args:
        home: FANLINE_HOME of the run, used by no other.
    """

    home: Path
    store: ArtifactStore

    @property
    def run_id(self) -> str | None:
        """The run's id once it works on something, from its spool folder."""
        found = [p.parent.name for p in self.home.glob("spool/*/lock")]
        return found[0] if found else None

    def published(self) -> list[str]:
        """The keys of the run, relative to its folder."""
        prefix = f"runs/{self.run_id}"
        return [key.removeprefix(f"{prefix}/") for key in self.store.keys(prefix)] if self.run_id else []

    def spooled(self, pattern: str) -> list[Path]:
        return list(self.home.glob(f"spool/*/{pattern}"))


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A stage that has begun and has not finished.

    Args:
        begins: start of a key that is published when the stage begins; or
        spooled: pattern of a spool file that is there then.
        ends: start of the key that the stage publishes when it has finished.
    """

    name: str
    ends: str
    begins: str | None = None
    spooled: str | None = None
    says: str = ""

    def has_come(self, run: Watched) -> bool:
        if self.spooled is not None:
            return any(self.says in path.read_text() for path in run.spooled(self.spooled))
        return _any_starts(run.published(), self.begins or "")

    def is_over(self, run: Watched) -> bool:
        return _any_starts(run.published(), self.ends)

    @property
    def event(self) -> str:
        """What is waited for, in words."""
        if self.spooled is None:
            return f"{self.begins} is published"
        return f"{self.spooled} holds {self.says}" if self.says else f"{self.spooled} is there"


def _any_starts(keys: Sequence[str], start: str) -> bool:
    return any(key.startswith(start) for key in keys)


def _rollout(iteration: int) -> Moment:
    return Moment(
        name=f"rollout {iteration}",
        spooled=f"*.rollout.{iteration}.*.jsonl",
        says='"called"',
        ends=f"iterations/{iteration:04d}/rollout.json",
    )


MOMENTS = {
    moment.name: moment
    for moment in (
        Moment(name="download", begins="run.json", ends="iterations/0000/download-prompts"),
        Moment(name="start", spooled="engine*.log", ends="iterations/0000/rollout.json"),
        _rollout(0),
        Moment(
            name="normalization 0",
            begins="iterations/0000/rollout.json",
            ends="iterations/0000/reward_normalization.json",
        ),
        Moment(name="training 0", begins="iterations/0000/plan-", ends="iterations/0000/training.json"),
        Moment(name="weight sync 0", begins="iterations/0000/training.json", ends="iterations/0000/sync.json"),
        _rollout(1),
        Moment(name="training 1", begins="iterations/0001/plan-", ends="iterations/0001/training.json"),
        Moment(name="checks", begins="iterations/0001/sync.json", ends="attempts/0001/summary.json"),
    )
}
