"""Run every scene clean, then every fault in its scene, and say of each whether the right check was red."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.drill.fault import Fault, installed
from infra.drill.scene import Scene, scenes_with
from infra.drill.stage import Stack, ready_stack, reasons, red_checks, run_scene, statuses
from infra.records.verdict import Outcome, Verdict
from infra.run import Run

CLEAN = "clean"
Told = Callable[["Row"], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the matrix: a scene without a fault, or a fault in its scene.

    `ok`: the clean run passed, or one of the checks in `must` was red and none but those in `must` and `may`.
    """

    fault: str
    scene: str
    what: str
    must: tuple[str, ...]
    may: tuple[str, ...]
    verdict: str
    checks: dict[str, str]
    reasons: dict[str, str]
    ok: bool
    why: str
    seconds: float

    @property
    def red(self) -> list[str]:
        return [name for name, status in self.checks.items() if status in ("fail", "infra")]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All rows, and what follows from them."""

    rows: tuple[Row, ...] = field(default_factory=tuple)

    @property
    def clean(self) -> list[Row]:
        return [row for row in self.rows if row.fault == CLEAN]

    @property
    def faults(self) -> list[Row]:
        return [row for row in self.rows if row.fault != CLEAN]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "faults": len(self.faults),
            "caught": sum(row.ok for row in self.faults),
            "clean_runs": len(self.clean),
            "false_alarms": sum(not row.ok for row in self.clean),
            "seconds": sum(row.seconds for row in self.rows),
            "rows": [{**vars(row), "red": row.red} for row in self.rows],
        }


def drill(faults: Sequence[Fault], told: Told = lambda row: None, overrides: Sequence[str] = ()) -> Matrix:
    """Every scene that the faults need, clean and then with each fault.

    Args:
        told: called with each row as it is there.
        overrides: `a.b=value` on top of every scene, for another device or type.
    Raises:
        TrainerUnavailable, EngineUnavailable: the stack itself does not start.
    """
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        told(row)

    scenes = scenes_with(overrides)
    with (
        tempfile.TemporaryDirectory(prefix="fanline-drill-") as name,
        ready_stack(Path(name), scenes["later"].scenario()) as stack,
    ):
        for scene in (s for s in scenes.values() if any(f.scene == s.name for f in faults)):
            with _with_engine(stack, scene, Path(name)):
                add(_clean(stack, scene, Path(name)))
                for fault in (f for f in faults if f.scene == scene.name):
                    add(_with_fault(stack, scene, fault, Path(name)))
    return Matrix(rows=tuple(rows))


@contextlib.contextmanager
def _with_engine(stack: Stack, scene: Scene, folder: Path) -> Iterator[None]:
    if not scene.engine:
        yield
        return
    from infra.sglang.engine import SGLangEngine

    run = Run(run_id="drill", scenario=scene.scenario(), store_uri=str(folder / "store"), spool=folder / "spool")
    with SGLangEngine.for_run(run, stack.model) as engine:
        engine.wait_ready()
        stack.engine = engine
        yield
    stack.engine = None


def _clean(stack: Stack, scene: Scene, folder: Path) -> Row:
    started = time.monotonic()
    verdict, _ = _run(stack, scene, None, folder, CLEAN, {})
    ok = verdict.outcome is Outcome.PASS
    return _row(CLEAN, scene, scene.what, (), (), verdict, ok, "" if ok else f"false alarm: {verdict.message}", started)


def _with_fault(stack: Stack, scene: Scene, fault: Fault, folder: Path) -> Row:
    """A fault that comes in several forms is caught if each of them is; the first that is not makes the row."""
    started, verdict = time.monotonic(), None
    for number, options in enumerate(_forms(fault, stack)):
        try:
            verdict, calls = _run(stack, scene, fault, folder, f"{fault.name}-{number}", options)
        except Exception as crash:  # a crash is not a verdict: the fault counts as not caught, the drill goes on
            why = f"caught by a crash only: {type(crash).__name__}: {crash}"
            return _row(fault.name, scene, fault.what, fault.must, fault.may, None, False, why, started)
        if why := why_not(fault, verdict, calls):
            why = " ".join([why, *(f"({name} {value})" for name, value in options.items())])
            return _row(fault.name, scene, fault.what, fault.must, fault.may, verdict, False, why, started)
    return _row(fault.name, scene, fault.what, fault.must, fault.may, verdict, True, "", started)


def _forms(fault: Fault, stack: Stack) -> list[dict[str, str]]:
    if not fault.each_tensor:
        return [{}]
    from infra.megatron.core import read_weights

    return [{"tensor": name} for name in sorted(read_weights(stack.model.path))]


def _run(
    stack: Stack, scene: Scene, fault: Fault | None, folder: Path, name: str, options: dict[str, str]
) -> tuple[Verdict, Counter[str]]:
    """The verdict, and how often each replaced function was called, here and in the ranks."""
    run = Run(
        run_id=f"{scene.name}-{name}",
        scenario=scene.scenario(),
        store_uri=str(folder / "store"),
        spool=folder / "spool" / f"{scene.name}-{name}",
    )
    if stack.engine:
        stack.trainer.begin(run, {}, {})
        stack.trainer.push_weights(stack.engine.receivers, "as downloaded")
    stack.trainer.begin(run, fault.replaces if fault else {}, options)
    try:
        with installed(fault.here() if fault else {}) as calls:
            verdict = run_scene(stack, run)
    finally:
        in_the_ranks = stack.trainer.end()
    calls.update(in_the_ranks)
    return verdict, calls


def why_not(fault: Fault, verdict: Verdict, calls: Mapping[str, int]) -> str:
    """Why a fault counts as not caught; empty where it was.

    Args:
        calls: of each replaced function that is counted; where one was never called, green checks say nothing.
    """
    red = red_checks(verdict)
    if not red and (idle := [target for target, times in calls.items() if not times]):
        return f"the replaced function was never called: {', '.join(idle)}"
    if not red:
        return f"missed: the verdict is {verdict.outcome.name}"
    if fault.must and not set(red) & set(fault.must):
        return f"caught by {', '.join(red)}, and {' or '.join(fault.must)} is green"
    if fault.must and (more := [name for name in red if name not in (*fault.must, *fault.may)]):
        return f"{', '.join(more)} is red besides, which the table does not name"
    if verdict.outcome is not Outcome.REGRESSION:
        return f"the verdict is {verdict.outcome.name}"
    return ""


def _row(
    fault: str,
    scene: Scene,
    what: str,
    must: tuple[str, ...],
    may: tuple[str, ...],
    verdict: Verdict | None,
    ok: bool,
    why: str,
    started: float,
) -> Row:
    return Row(
        fault=fault,
        scene=scene.name,
        what=what,
        must=must,
        may=may,
        verdict=verdict.outcome.name if verdict else "none",
        checks=dict(statuses(verdict)) if verdict else {},
        reasons=reasons(verdict, red_checks(verdict)) if verdict else {},
        ok=ok,
        why=why,
        seconds=round(time.monotonic() - started, 2),
    )
