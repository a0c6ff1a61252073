"""An evaluation that is missing, trained, miscounted or of other weights turns the ledger red."""

import pytest

from infra.records.rollouts import RolloutsRef, rollouts_table, write_table
from infra.records.training import TrainedIteration
from tasks.counter_assertion.registry import run_checks
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PlainLoop

FIRST = 2**40
SECTIONS = {"rollout": {"iterations": 1}}
ASKED = {"data": "embedded://parity", "prompts": 2}


class Evaluating(PlainLoop):
    """Two prompts, one rollout each, behind the only iteration."""

    def evaluated(self) -> list[dict]:
        rows = [{**self.sample(0, FIRST + n, FIRST + n, 0), "rollout_id": FIRST + n} for n in range(2)]
        return [{**r, "reward": float(n)} for n, r in enumerate(rows)]

    def called(self, index: int) -> int:
        return 1

    def mean(self) -> float:
        return 0.5

    def iterate(self, i: int) -> None:
        super().iterate(i)
        rows = self.evaluated()
        slots = range(FIRST, FIRST + 2)
        hook = self.run.scenario.rollout.generate
        drawn = [{"indices": [n], "group_index": n, "prompt_id": "row-0", "hook": hook} for n in slots]
        call = {"attempt": 1, "hook": hook}
        calls = [{"index": n, "group_index": n, **call} for n in slots for _ in range(self.called(n))]
        finished = self.run.finished("training", i)
        assert finished is not None
        trained = TrainedIteration.from_dict(finished)
        ref = RolloutsRef(
            iteration=i,
            table=write_table(self.run.store, self.run.key("eval.parquet"), rollouts_table(rows)),
            log_probs=trained.log_probs,
            ledger=(self.segment("evaluation", i, [("drawn", drawn), ("called", calls)]),),
            samples=2,
            rollouts=2,
            generated_tokens=0,
            weight_version=self.version,
            figures={"mean reward": self.mean()},
        )
        self.run.finish("evaluation", i, ref.to_dict())


def asking(loop_of, kind):
    loop = loop_of(kind, **SECTIONS)
    scenario = loop.run.scenario
    document = {**scenario.model_dump(), "evaluation": ASKED}
    from dataclasses import replace

    loop.run = replace(loop.run, scenario=type(scenario).model_validate(document))
    return loop


def test_a_right_evaluation_passes_and_changes_no_other_check(loop_of):
    found = run_checks(evidence_of(asking(loop_of, Evaluating)))
    assert {r.name: r.reason for r in found if r.status not in ("pass", "not run")} == {}


class Missing(PlainLoop):
    pass


class OtherWeights(Evaluating):
    def evaluated(self):
        return [{**r, "weight_version": "v0"} for r in super().evaluated()]


class CalledTwice(Evaluating):
    def called(self, index):
        return 2 if index == FIRST else 1


class Lost(Evaluating):
    def evaluated(self):
        return super().evaluated()[:1]

    def mean(self):
        return 0.0


class WrongMean(Evaluating):
    def mean(self):
        return 1.0


class Trained(Evaluating):
    def normalise(self, rows):
        return [*super().normalise(rows), {**self.evaluated()[0], "advantage": 0.0}]


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (Missing, "the weights of iteration 0 were not evaluated"),
        (OtherWeights, "was generated with weights ['v0'], trained were 'v1'"),
        (CalledTwice, f"slot {FIRST} of the evaluation of iteration 0 was called 2 times"),
        (Lost, f"slot {FIRST + 1} of the evaluation of iteration 0 is neither stored nor dropped with a reason"),
        (WrongMean, "says a mean reward of 1, its samples have 0.5"),
        (Trained, f"slot {FIRST} of the evaluation of iteration 0 was trained"),
    ],
)
def test_what_is_wrong_with_an_evaluation_is_named(loop_of, bug, words):
    (found,) = run_checks(evidence_of(asking(loop_of, bug)), ["ledger"])
    assert found.status == "fail" and words in found.reason
