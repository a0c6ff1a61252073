"""What two runs differ in: what went in, and the first record that came out different."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from infra.records.rollouts import RolloutsRef, read_table
from infra.records.training import TrainedIteration
from infra.run import Run
from tasks.report.publish import latest_summary

SHOWN_CHARACTERS = 120
NOT_OUTCOME = {"seconds", "weight_version", "gradient", "weights_before"}  # of a step: time, and names of files


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs; `left` and `right` as text, empty where a side has nothing."""

    what: str
    left: str
    right: str


@dataclass(frozen=True, kw_only=True)
class RunDifferences:
    """What went in, by kind, and the first record of what came out; None where all records are equal."""

    inputs: dict[str, list[Difference]]
    record: Difference | None

    @property
    def same(self) -> bool:
        return self.record is None and not any(self.inputs.values())

    def to_dict(self) -> dict[str, Any]:
        inputs = {kind: [asdict(d) for d in found] for kind, found in self.inputs.items()}
        return {"same": self.same, "inputs": inputs, "first_record": self.record and asdict(self.record)}


def differences(left: Run, right: Run) -> RunDifferences:
    """Compare two stored runs. A run that has no report has said nothing of packages and machine."""
    a, b = _inputs(left), _inputs(right)
    inputs = {kind: _compared(a[kind], b[kind]) for kind in a}
    return RunDifferences(inputs=inputs, record=next(_records(left, right), None))


def _inputs(run: Run) -> dict[str, dict[str, Any]]:
    opened = run.store.read_json(run.key("run.json"))
    environment = (latest_summary(run.store, run.run_id) or {}).get("environment", {})
    machine = {
        name: environment.get(name) for name in ("python", "machine", "cpu", "cpu_flags", "torch_threads", "device")
    }
    return {
        "code": {name: opened.get(name) for name in ("code_digest", "hooks_digest")},
        "packages": environment.get("packages", {}),
        "machine": machine,
        "model": run.finished("download-model", 0) or {},
        "data": _data(run),
        "settings": flattened(opened["scenario"]),
    }


def _data(run: Run) -> dict[str, Any]:
    record = run.finished("download-prompts", 0)
    if record is None:
        return {}
    return {
        "uri": record["uri"],
        "revision": record["revision"],
        "rows": record["rows"],
        "prompts": record["table"]["sha256"],
    }


def flattened(value: Any, path: str = "") -> dict[str, Any]:
    """A nested document as one value for each dotted path."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {k: v for name, inner in value.items() for k, v in flattened(inner, f"{path}.{name}".lstrip(".")).items()}


def _compared(left: dict[str, Any], right: dict[str, Any]) -> list[Difference]:
    names = sorted(left.keys() | right.keys())
    return [_difference(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)]


def _records(left: Run, right: Run) -> Iterator[Difference]:
    """What differs in the records, in the order in which they came to be."""
    for iteration in range(max(left.scenario.rollout.iterations, right.scenario.rollout.iterations)):
        for stage in ("rollout", "reward_normalization"):
            yield from _tables(left, right, stage, iteration)
        yield from _trained(left, right, iteration)


def _tables(left: Run, right: Run, stage: str, iteration: int) -> Iterator[Difference]:
    where = f"iteration {iteration}, {stage}"
    records = [run.finished(stage, iteration) for run in (left, right)]
    if None in records:
        if records != [None, None]:
            yield _difference(where, *("there" if r else "not there" for r in records))
        return
    a, b = (RolloutsRef.from_dict(r) for r in records if r)
    if a.table.sha256 != b.table.sha256:
        yield from _rows(where, read_table(left.store, a.table), read_table(right.store, b.table))


def _rows(where: str, left: pa.Table, right: pa.Table) -> Iterator[Difference]:
    rows = [{(r["rollout_id"], r["sibling"]): r for r in table.to_pylist()} for table in (left, right)]
    for ids in sorted(rows[0].keys() | rows[1].keys()):
        sample = f"{where}, rollout {ids[0]} sibling {ids[1]}"
        a, b = rows[0].get(ids), rows[1].get(ids)
        if a is None or b is None:
            yield _difference(sample, *("there" if r else "not there" for r in (a, b)))
            continue
        for name in a.keys() | b.keys():
            if a.get(name) != b.get(name):
                yield _difference(f"{sample}, {name}", *_at_the_first(a.get(name), b.get(name)))


def _at_the_first(left: Any, right: Any) -> tuple[Any, Any]:
    """Of two lists the first position that differs, with what is there."""
    if not (isinstance(left, list) and isinstance(right, list)):
        return left, right
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return tuple(f"{side[at] if at < len(side) else 'nothing'} at {at} of {len(side)}" for side in (left, right))  # type: ignore[return-value]


def _inside(left: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two documents differ, in their own order: dotted path and both values."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys()):
            yield from _inside(left.get(name), right.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for position, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from _inside(a, b, f"{path}[{position}]")
    elif left != right:
        yield path, left, right


def _trained(left: Run, right: Run, iteration: int) -> Iterator[Difference]:
    records = [run.finished("training", iteration) for run in (left, right)]
    if None in records:
        if records != [None, None]:
            yield _difference(f"iteration {iteration}, training", *("there" if r else "not there" for r in records))
        return
    a, b = (TrainedIteration.from_dict(r) for r in records if r)
    if a.plan.sha256 != b.plan.sha256:
        plans = left.store.read_json(a.plan), right.store.read_json(b.plan)
        yield from (_difference(f"iteration {iteration}, plan, {path}", x, y) for path, x, y in _inside(*plans))
    if a.log_probs.sha256 != b.log_probs.sha256:
        yield _difference(f"iteration {iteration}, trainer log-probs", a.log_probs.sha256, b.log_probs.sha256)
    for one, other in zip(a.steps, b.steps, strict=False):
        where = f"iteration {iteration}, step {one.step}"
        for found in _compared(
            flattened(_without(asdict(one), *NOT_OUTCOME)), flattened(_without(asdict(other), *NOT_OUTCOME))
        ):
            yield _difference(f"{where}, {found.what}", found.left, found.right)


def _without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def _difference(what: str, left: Any, right: Any) -> Difference:
    return Difference(what=what, left=_text(left), right=_text(right))


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
