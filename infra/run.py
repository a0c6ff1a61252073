"""One run: its id, scenario and store, and which stages of which iterations are finished."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from infra.scenario.model import Scenario
from infra.store import ArtifactStore


@dataclass(frozen=True)
class Run:
    """What every task needs to know of the run it works for. Frozen, JSON-able but for the store's connection.

    Args:
        run_id: unique, also the folder `runs/<run_id>` of the store.
        store_uri: the artifact store.
        spool: local folder for ledger files while they grow, engine logs and model caches of this run.
    """

    run_id: str
    scenario: Scenario
    store_uri: str
    spool: Path

    @cached_property
    def store(self) -> ArtifactStore:
        return ArtifactStore(self.store_uri)

    def key(self, *parts: str | int) -> str:
        """A key of this run in the store; integers become four digits: key("iterations", 3, "plan.json")."""
        return "/".join(["runs", self.run_id, *(f"{p:04d}" if isinstance(p, int) else p for p in parts)])

    def finished(self, stage: str, iteration: int) -> dict[str, Any] | None:
        """The record that a finished stage left, or None."""
        key = self.key("iterations", iteration, f"{stage}.json")
        return self.store.read_json(key) if self.store.exists(key) else None

    def finish(self, stage: str, iteration: int, record: dict[str, Any]) -> None:
        """Publish a stage's record: from here on a rerun takes it instead of doing the work again."""
        self.store.publish_json(self.key("iterations", iteration, f"{stage}.json"), record)

    def last_finished(self, stage: str) -> int | None:
        """The last iteration in which a stage has finished, None where there is none."""
        done = [i for i in range(self.scenario.rollout.iterations) if self.finished(stage, i)]
        return done[-1] if done else None

    def unfinished_iterations(self) -> range:
        """The iterations that are still to be run, from the first whose weights are not synced, or not evaluated."""
        last = self.last_finished("sync")
        if last is None:
            first = 0
        else:
            due = self.scenario.evaluates_after(last) and not self.finished("evaluation", last)
            first = last if due else last + 1
        return range(first, self.scenario.rollout.iterations)
