"""What the history of a lease folder proves: no GPU was given twice, nobody got a part, nobody overtook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def earlier(path: Path) -> Path:
    """Where a history goes when it has become long."""
    return path.with_suffix(".earlier.jsonl")


def read_history(path: Path, pool: str | None = None) -> list[dict[str, Any]]:
    """The events of a folder's `history.jsonl`, in the order in which they happened; of one pool where it is named."""
    files = [file for file in (earlier(path), path) if file.exists()]
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [event for event in events if pool is None or event["pool"] == pool]


def over_committed(events: Sequence[dict[str, Any]]) -> list[str]:
    """GPUs that were taken while another run had them, in words; empty where leases were kept."""
    held: dict[str, str] = {}
    wrong = []
    for event in events:
        if event["event"] == "taken":
            wrong += [f"{gpu}: {event['run']} beside {held[gpu]}" for gpu in event["gpus"] if gpu in held]
            held.update(dict.fromkeys(event["gpus"], event["run"]))
        if event["event"] in ("given", "freed"):
            for gpu in event["gpus"]:
                held.pop(gpu, None)
    return wrong


def in_part(events: Sequence[dict[str, Any]]) -> list[str]:
    """Runs that got another number of GPUs than they asked for, in words."""
    return [
        f"{event['run']}: {len(event['gpus'])} of {event['asked']}"
        for event in events
        if event["event"] == "taken" and len(event["gpus"]) != event["asked"]
    ]


def overtaken(events: Sequence[dict[str, Any]]) -> list[str]:
    """Runs that got GPUs while one of the same pool with an earlier place waited, in words."""
    waiting: dict[int, tuple[tuple[int, int], str]] = {}
    wrong = []
    for event in events:
        if event["event"] == "waits":
            waiting[event["ticket"]] = ((event["priority"], event["ticket"]), event["run"])
        if event["event"] in ("left", "died"):
            waiting.pop(event["ticket"], None)
        if event["event"] == "taken":
            place, run = waiting.pop(event["ticket"])
            wrong += [f"{run} before {other}" for earlier, other in waiting.values() if earlier < place]
    return wrong
