"""Which runs may go: a pure rule over what is known of each."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """One run as the store has it.

    Args:
        last_written: newest object, seconds since the epoch.
        bytes: of all objects.
        held_by: why it must stay whatever its age, as `baseline` or `running`; None where nothing holds it.
    """

    run_id: str
    scenario: str
    last_written: float
    objects: int
    bytes: int
    held_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How much is kept.

    Args:
        days: runs younger than this stay.
        keep: of each scenario the newest runs that stay, however old they are.
    """

    days: float
    keep: int

    def expired(self, runs: Sequence[StoredRun], now: float) -> list[StoredRun]:
        """The runs that may go, oldest first.

        Args:
            now: seconds since the epoch.
        """
        newest: dict[str, int] = {}
        gone = []
        for run in sorted(runs, key=lambda r: (-r.last_written, r.run_id)):
            newest[run.scenario] = newest.get(run.scenario, 0) + 1
            old = now - run.last_written > self.days * 86_400
            if old and newest[run.scenario] > self.keep and run.held_by is None:
                gone.append(run)
        return gone[::-1]
