"""Rollouts that are carried into the next iteration: a right loop passes every check, a wrong one does not."""

from dataclasses import replace

import pytest

from infra.records.plan import LeftOut
from infra.records.training import TrainedIteration
from tasks.counter_assertion.registry import run_checks
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PlainLoop

CARRY = {"rollout": {"iterations": 3}, "training": {"global_batch_size": 6, "trailing": "carry"}}


class Carrying(PlainLoop):
    """16 rollouts an iteration, 6 a step: 4, 2 and 0 are left over."""

    def __post_init__(self):
        super().__post_init__()
        self.waiting: list[dict] = []

    def taken_over(self, rows):
        return rows

    def why(self, i):
        return "carried" if i < self.run.scenario.rollout.iterations - 1 else "trailing"

    def normalise(self, rows):
        return [*self.taken_over(self.waiting), *super().normalise(rows)]

    def events(self, name, lines):
        carried = {r["rollout_id"] for r in self.waiting}
        return [line for line in lines if name != "normalised" or line["rollout_id"] not in carried]

    def plan(self, i, rows):
        plan = super().plan(i, rows)
        left = {o.rollout_id for o in plan.left_out}
        self.waiting = [r for r in rows if r["rollout_id"] in left]
        return replace(plan, left_out=tuple(LeftOut(rollout_id=r, reason=self.why(i)) for r in sorted(left)))


def red(loop: PlainLoop) -> dict[str, str]:
    found = run_checks(evidence_of(loop))
    return {r.name: r.reason for r in found if r.status not in ("pass", "not run")}


def test_rollouts_carried_over_pass_every_check(loop_of):
    loop = loop_of(Carrying, **CARRY)
    assert red(loop) == {}
    steps = [TrainedIteration.from_dict(loop.run.finished("training", i)).steps for i in range(3)]
    assert [len(s) for s in steps] == [2, 3, 3]


class Lost(Carrying):
    def taken_over(self, rows):
        return []


class Changed(Carrying):
    def taken_over(self, rows):
        return [{**r, "advantage": r["advantage"] + 1} for r in rows]


class NotSaid(Carrying):
    def why(self, i):
        return "trailing"


class CarriedOutOfTheRun(Carrying):
    def why(self, i):
        return "carried"


@pytest.mark.parametrize(
    ("bug", "size", "check", "words"),
    [
        (Lost, 6, "ledger", "was normalised and not packed, and no reason is given"),
        (Lost, 6, "steps", "was carried over to it and is not in its table"),
        (Changed, 6, "steps", "changed on the way into it"),
        (NotSaid, 6, "ledger", "is in a step and also left out (trailing)"),
        (NotSaid, 6, "steps", "is trailing, the scenario asks for carried"),
        (CarriedOutOfTheRun, 7, "steps", "is carried, the scenario asks for trailing"),
    ],
)
def test_what_is_wrong_with_a_carry_is_named(loop_of, bug, size, check, words):
    sections = {**CARRY, "training": {**CARRY["training"], "global_batch_size": size}}
    assert words in red(loop_of(bug, **sections))[check]


def test_an_early_end_excuses_what_waits_for_the_next_iteration(loop_of):
    class EndsEarly(Carrying):
        def iterate(self, i):
            if i == 0:
                super().iterate(i)

    from infra.errors import EngineUnavailable

    found = run_checks(evidence_of(loop_of(EndsEarly, **CARRY), EngineUnavailable("The engine ended.")))
    assert {r.name for r in found if r.status not in ("pass", "not run")} == {"EngineUnavailable"}
