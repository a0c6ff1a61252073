"""One row of the table: a run, a strike at a moment that was seen, and how the run got over it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.chaos.launch import Launched, Scene
from infra.chaos.moments import Moment, Watched
from infra.chaos.processes import of_home, wait_until
from infra.chaos.services import PrefectServer
from infra.chaos.targets import Target
from infra.errors import InfraFault

LOOK_SECONDS = 0.005
MOMENT_SECONDS = 300.0
GONE_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was taken away when, and what came of it.

    Args:
        event: what was waited for before the strike.
        unfinished: whether the stage's record was still missing right after the strike; where the strike takes the
            store away, right before it.
        outcome: `recovered` in the same process, or how that ended and `resumed`.
        ended: verdict of the run that was struck; where it has none what Prefect says of it, None where nobody does.
        verdict: the last one.
        same_weights: whether they are those of an undisturbed run, to the bit.
        seconds_to_recovery: from the strike to the verdict.
        marked: whether the store says how the struck attempt ended: by its summary, or by its `ended.json`.
        left_running: command lines that were still there 15 s after the struck run had ended.
    """

    target: str
    moment: str
    event: str
    unfinished: bool
    outcome: str
    ended: str | None
    message: str
    verdict: str | None
    same_weights: bool
    seconds_to_recovery: float
    seconds_until_gone: float
    marked: bool
    left_running: list[str]

    @property
    def ok(self) -> bool:
        return self.unfinished and self.verdict == "PASS" and self.same_weights and not self.left_running

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def strike(target: Target, moment: Moment, prefect: PrefectServer, home: Path, weights: str) -> Row:
    """One row.

    Args:
        home: an empty folder for the run.
        weights: digest of an undisturbed run's weights.
    Raises:
        InfraFault: the moment did not come.
    """
    home.mkdir(parents=True)
    with target.opened(home) as store:
        scene = Scene(home=home, prefect=prefect, store=store)
        run = Watched(home=home, store=store.store)
        launched = target.launch(scene)
        try:
            return _struck(target, moment, scene, run, launched, weights)
        finally:
            launched.close()


def _struck(target: Target, moment: Moment, scene: Scene, run: Watched, launched: Launched, weights: str) -> Row:
    _wait_for(moment, run, launched)
    unfinished = not moment.is_over(run)
    target.strike(scene, launched)
    struck = time.monotonic()
    unfinished = unfinished and not (target.store_answers and moment.is_over(run))
    if target.relieve and target.when == "at once":
        target.relieve(scene, launched)
    ended = launched.summary()
    ended_at = time.monotonic()
    wait_until(lambda: not _left(scene, launched), GONE_SECONDS)
    left, gone = _left(scene, launched), time.monotonic() - ended_at
    if target.relieve and target.when == "after":
        target.relieve(scene, launched)
    marked = any(key.startswith("attempts/") for key in run.published())
    last, outcome = ended, "recovered"
    if not ended or ended.get("verdict") != "PASS":
        how = ended.get("verdict", "refused") if ended else "killed"
        last, outcome = launched.resumed(run.run_id or ""), f"{how}, then resumed"
    recovered = time.monotonic() - struck
    return Row(
        target=target.name,
        moment=moment.name,
        event=moment.event,
        unfinished=unfinished,
        outcome=outcome,
        ended=ended.get("verdict") if ended else None,
        message=_said(ended),
        verdict=last.get("verdict") if last else None,
        same_weights=bool(last) and last.get("weights_digest") == weights,
        seconds_to_recovery=round(recovered, 1),
        seconds_until_gone=round(gone, 1),
        marked=marked,
        left_running=left,
    )


def _left(scene: Scene, launched: Launched) -> list[str]:
    """Command lines of what the run has started and is still there, on this host and on nodes that it joined."""
    here = [command for command in of_home(scene.home).values() if not launched.keeps(command)]
    return here + scene.store.working()


def _wait_for(moment: Moment, run: Watched, launched: Launched) -> None:
    deadline = time.monotonic() + MOMENT_SECONDS
    while not moment.has_come(run):
        if launched.is_over() or time.monotonic() > deadline:
            raise InfraFault(f"The moment {moment.name} did not come: not seen was that {moment.event}.")
        time.sleep(LOOK_SECONDS)


def _said(summary: dict[str, Any] | None) -> str:
    return (summary.get("message") or summary.get("error") or "")[:300] if summary else ""
