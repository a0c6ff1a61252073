"""Prompt groups that one iteration holds back and the next goes on with: right, and wrong in each way."""

import pytest

from tasks.counter_assertion.registry import run_checks
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PlainLoop

HELD = 3  # the last prompt group of iteration 0
SECTIONS = {"rollout": {"iterations": 2, "partial": "keep"}, "training": {"global_batch_size": 4}}


class Holding(PlainLoop):
    def __post_init__(self):
        super().__post_init__()
        self.waiting: list[dict] = []
        self.iteration = 0

    def held(self, rows: list[dict]) -> list[dict]:
        return [
            {"index": n, "group_index": HELD, "reason": "an abort"} for n in dict.fromkeys(r["index"] for r in rows)
        ]

    def continued(self, rows: list[dict]) -> list[dict]:
        line = {"group_index": HELD, "prompt_id": f"row-{HELD}", "epoch": 0, "hook": self.drawn_hook(f"row-{HELD}")}
        return [{**line, "indices": list(dict.fromkeys(r["index"] for r in rows))}]

    def versions(self, row: dict) -> str:
        return f"{row['weight_version']},{self.version}"

    def generate(self, i):
        self.iteration, rows = i, super().generate(i)
        if i == 0:
            self.waiting = [r for r in rows if r["group_index"] == HELD]
            return [r for r in rows if r["group_index"] != HELD]
        return [*({**r, "iteration": i, "weight_version": self.versions(r)} for r in self.waiting), *rows]

    def write_rollout_ledger(self, i, rows):
        segments = super().write_rollout_ledger(i, rows)
        if i == 1:
            return (*segments, self.segment("rollout", i, [("continued", self.continued(self.waiting))]))
        (line,) = self.continued(self.waiting)
        called = [{**e, "attempt": 1, "hook": line["hook"]} for e in self.held(self.waiting)]
        return (
            *segments,
            self.segment("rollout", i, [("drawn", [line]), ("called", called), ("held", self.held(self.waiting))]),
        )

    def events(self, name, lines):
        again = name == "drawn" and self.iteration == 1
        return [line for line in lines if not again or line["group_index"] != HELD]


def red(loop: PlainLoop) -> dict[str, str]:
    return {r.name: r.reason for r in run_checks(evidence_of(loop)) if r.status not in ("pass", "not run")}


def test_a_group_that_goes_on_passes_every_check(loop_of):
    assert red(loop_of(Holding, **SECTIONS)) == {}


class NeverGoesOn(Holding):
    def continued(self, rows):
        return super().continued([] if self.iteration else rows)


class NotSaidToWait(Holding):
    def held(self, rows):
        return super().held(rows[:-1])[:-1]


class OfAnotherGroup(Holding):
    def held(self, rows):
        return [{**e, "group_index": HELD - 1} for e in super().held(rows)]


class OfUnknownWeights(Holding):
    def versions(self, row):
        return "v7,v1"


@pytest.mark.parametrize(
    ("bug", "check", "words"),
    [
        (NeverGoesOn, "counter", "slot 12 was held back before iteration 1 and did not go on in it"),
        (NotSaidToWait, "counter", "slot 15 went on in iteration 1 and had not been held back"),
        (OfAnotherGroup, "counter", "was held back in group 2 and went on in group 3"),
        (OfUnknownWeights, "weight-sync", "was generated with weights 'v7,v1'"),
    ],
)
def test_what_is_wrong_with_a_held_group_is_named(loop_of, bug, check, words):
    assert words in red(loop_of(bug, **SECTIONS))[check]


def test_older_weights_without_partial_rollouts_are_still_red(loop_of):
    sections = {**SECTIONS, "rollout": {"iterations": 2}}
    assert "was generated with weights 'v0,v1'" in red(loop_of(Holding, **sections))["weight-sync"]
