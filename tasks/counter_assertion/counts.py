"""How many of everything there were, by iteration: the table behind the counter and the ledger."""

from typing import Any

from tasks.counter_assertion.evidence import Evidence

EVENTS = ("drawn", "called", "attempt_failed", "generated", "graded", "dropped", "normalised", "trained", "dummy")


def counts_by_iteration(evidence: Evidence) -> list[dict[str, Any]]:
    """One row an iteration; iterations that left no ledger are missing."""
    return [
        {"iteration": it.iteration, **{name: len(it.events(name)) for name in EVENTS}}
        for it in evidence.iterations
        if "ledger" in it.parts
    ]
