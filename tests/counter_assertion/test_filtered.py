"""What filters take out has to have its reason, and the reason has to be true."""

import pytest

from tasks.counter_assertion.registry import run_checks
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PlainLoop

SECTIONS = {
    "rollout": {"iterations": 1, "prompts": 6, "dynamic_filter": "hooks.filters.mixed_rewards"},
    "training": {"global_batch_size": 4},
}


class Filtering(PlainLoop):
    """Drops groups of equal rewards after they were graded, as the rollout stage does."""

    def grade(self, response, label):
        return float(response == label) if label == "0" else 1.0

    def dropped(self, rows):
        rewards: dict[int, set[float]] = {}
        for r in rows:
            rewards.setdefault(r["group_index"], set()).add(r["reward"])
        return {group for group, values in rewards.items() if len(values) == 1}

    def stored(self, rows):
        gone = self.dropped(rows)
        return [r for r in rows if r["group_index"] not in gone]

    def lines(self, rows):
        gone = self.dropped(rows)
        ids = {r["rollout_id"]: r for r in rows if r["group_index"] in gone}
        names = ("rollout_id", "index", "group_index")
        return [{**{n: r[n] for n in names}, "reason": "equal rewards", "filter": "dynamic"} for r in ids.values()]

    def write_rollout_ledger(self, i, rows):
        segments = super().write_rollout_ledger(i, rows)
        return (*segments, self.segment("rollout", i, [("dropped", self.lines(rows))]))

    def events(self, name, lines):
        return [{**e, "group_index": e["index"] // 4} if name == "generated" else e for e in lines]


class GroupKept(Filtering):
    def dropped(self, rows):
        return set(sorted(super().dropped(rows))[1:])


class GroupHalfDropped(Filtering):
    def lines(self, rows):
        one = {**super().lines(rows)[0]}
        kept = next(r for r in rows if r["group_index"] not in self.dropped(rows))
        return [*super().lines(rows), {**one, **{n: kept[n] for n in ("rollout_id", "index", "group_index")}}]


class MixedGroupDropped(Filtering):
    def dropped(self, rows):
        mixed = sorted({r["group_index"] for r in rows} - super().dropped(rows))
        return super().dropped(rows) | {mixed[-1]}


class SilentlyDropped(Filtering):
    def lines(self, rows):
        return super().lines(rows)[1:]


class SilentlyRemoved(Filtering):
    def mask(self, index, length):
        return [1] * length

    def sample(self, i, group, index, sibling):
        return {**super().sample(i, group, index, sibling), "remove_sample": index == 0 and sibling == 0}


class DroppedIdGivenAgain(Filtering):
    """An id of a dropped group, in the next iteration: what is stored has every id once."""

    def rollout_id(self, index, sibling):
        return 4 if index == 24 else index


def ledger(loop):
    return next(r for r in run_checks(evidence_of(loop), ["ledger"]))


def test_a_filter_with_reasons_passes_every_check(loop_of):
    loop = loop_of(Filtering, **SECTIONS)
    found = {r.name: r for r in run_checks(evidence_of(loop))}
    assert {n: r.reason for n, r in found.items() if r.status not in ("pass", "not run")} == {}
    assert found["ledger"].figures["dropped with a reason"] >= 12


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (GroupKept, "was kept by hooks.filters.mixed_rewards with the rewards [1.0]"),
        (MixedGroupDropped, "was dropped by hooks.filters.mixed_rewards with the rewards [0.0, 1.0]"),
        (GroupHalfDropped, "was dropped by the dynamic filter and its rollouts"),
        (SilentlyDropped, "was generated and not stored, and no reason is given"),
        (SilentlyRemoved, "sample (rollout 0, sibling 0) is removed and no reason is given"),
    ],
)
def test_a_filter_that_is_wrong_or_silent_turns_the_ledger_red(loop_of, bug, words):
    found = ledger(loop_of(bug, **SECTIONS))
    assert found.status == "fail" and words in found.reason


def test_an_id_of_a_dropped_group_that_is_given_again_turns_the_ledger_red_where_identity_is_not(loop_of):
    loop = loop_of(DroppedIdGivenAgain, **{**SECTIONS, "rollout": {**SECTIONS["rollout"], "iterations": 2}})
    found = {r.name: r for r in run_checks(evidence_of(loop), ["identity", "ledger"])}
    assert (found["identity"].status, found["ledger"].status) == ("pass", "fail")
    assert "rollout 4 was generated or stored in slots [4, 24]" in found["ledger"].reason
