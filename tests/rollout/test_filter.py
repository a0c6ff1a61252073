"""Filters and log hooks of one's own: what they may do, and what is refused by name."""

from types import SimpleNamespace

import numpy as np
import pytest

from hooks.figures import lengths
from hooks.filters import drop_truncated, mixed_rewards
from hooks.sample import Sample, Status
from infra.errors import ContractViolation, HookFailed
from infra.hook_loading import Hook
from tasks.rollout.contract import Rollout
from tasks.rollout.filter import drop_groups, figures_of, remove_samples
from tests.rollout.conftest import slot

ARGS = SimpleNamespace(reward_key=None)


def rollout(index: int, reward: float = 0.0, statuses: tuple[Status, ...] = (Status.COMPLETED,)) -> Rollout:
    group = index // 2
    siblings = [
        Sample(index=index, group_index=group, rollout_id=index, reward=reward, status=s, response_length=4 + index)
        for s in statuses
    ]
    return Rollout(slot=slot(index, group_index=group), hook="hooks.mine", attempt=1, siblings=siblings)


def hook(function) -> Hook:
    return Hook(f"hooks.mine.{function.__name__}", function)


def test_only_groups_whose_rewards_differ_are_kept():
    rollouts = [rollout(0, 1.0), rollout(1, 0.0), rollout(2, 1.0), rollout(3, 1.0)]
    kept, lines = drop_groups(rollouts, hook(mixed_rewards), ARGS)
    assert kept == rollouts[:2]
    reason = "dynamic filter hooks.mine.mixed_rewards"
    assert lines == [
        {"rollout_id": k, "index": k, "group_index": 1, "reason": reason, "filter": "dynamic"} for k in (2, 3)
    ]


def test_an_answer_of_slimes_kind_brings_its_reason():
    def zero_std(args, samples):
        return SimpleNamespace(keep=samples[0].group_index == 0, reason="zero_std_1.0")

    kept, lines = drop_groups([rollout(0), rollout(2)], hook(zero_std), ARGS)
    assert [r.slot.index for r in kept] == [0] and lines[0][
        "reason"
    ] == "dynamic filter hooks.mine.zero_std: zero_std_1.0"


def test_a_rollout_with_a_truncated_sibling_is_removed_as_a_whole():
    cut = rollout(1, statuses=(Status.TRUNCATED, Status.COMPLETED))
    rollouts = [rollout(0), cut]
    lines = remove_samples(rollouts, hook(drop_truncated), ARGS)
    assert [(e["rollout_id"], e["sibling"], e["reason"]) for e in lines] == [
        (1, 0, "sample filter hooks.mine.drop_truncated"),
        (1, 1, "sample filter hooks.mine.drop_truncated"),
    ]
    assert [s.remove_sample for r in rollouts for s in r.siblings] == [False, True, True]


def test_what_a_generate_hook_removed_has_a_reason_too_and_stays_removed():
    def puts_back(args, samples):
        for sample in samples:
            sample.remove_sample = False

    made = rollout(0)
    made.siblings[0].remove_sample = True
    for given in (None, hook(puts_back)):
        (line,) = remove_samples([made, rollout(1)], given, ARGS)
        assert (line["index"], line["reason"]) == (0, "generate hook hooks.mine")


def test_a_filter_can_change_nothing_but_the_mark():
    def rewrites(args, samples):
        for sample in samples:
            sample.reward, sample.tokens[:] = 5.0, [9]
        samples.clear()

    made = rollout(0)
    made.siblings[0].tokens = [1, 2]
    assert remove_samples([made], hook(rewrites), ARGS) == []
    assert (made.siblings[0].reward, made.siblings[0].tokens) == (0.0, [1, 2])


def test_figures_are_of_the_samples_that_are_left():
    rollouts = [rollout(0), rollout(1, statuses=(Status.TRUNCATED, Status.COMPLETED))]
    figures = figures_of(rollouts, hook(lengths), ARGS, 3)
    assert figures["response tokens, mean"] == pytest.approx(14 / 3) and figures["response tokens, largest"] == 5
    assert figures["truncated share"] == pytest.approx(1 / 3) and figures["samples a rollout"] == 1.5


@pytest.mark.parametrize(
    ("run", "answer", "words"),
    [
        (lambda h: drop_groups([rollout(0)], h, ARGS), None, "answered None for prompt group 0"),
        (lambda h: drop_groups([rollout(0)], h, ARGS), "yes", "answered 'yes' for prompt group 0"),
        (lambda h: drop_groups([rollout(0)], h, ARGS), np.zeros(2), "answered array.* for prompt group 0"),
        (lambda h: drop_groups([rollout(0)], h, ARGS), SimpleNamespace(keep=None), "answered None for prompt group 0"),
        (lambda h: remove_samples([rollout(0)], h, ARGS), [1], "Sample filter .* returned a list"),
        (lambda h: figures_of([rollout(0)], h, ARGS, 3), None, "returned None for iteration 3"),
        (lambda h: figures_of([rollout(0)], h, ARGS, 3), {"x": float("nan")}, "for iteration 3"),
        (lambda h: figures_of([rollout(0)], h, ARGS, 3), {"x": "many"}, "for iteration 3"),
    ],
)
def test_other_answers_are_refused_by_name(run, answer, words):
    def answers(*_):
        return answer

    with pytest.raises(ContractViolation, match=rf"hooks.mine.answers .*{words}|{words}"):
        run(hook(answers))


@pytest.mark.parametrize("mark", ["no", None, np.zeros(2)])
def test_a_mark_that_is_neither_true_nor_false_is_refused_by_rollout(mark):
    def marks(args, samples):
        samples[1].remove_sample = mark

    with pytest.raises(ContractViolation, match=r"hooks.mine.marks set remove_sample of rollout 1 to"):
        remove_samples([rollout(0), rollout(1)], hook(marks), ARGS)


def test_an_answer_of_slimes_kind_without_a_reason_is_one():
    kept, lines = drop_groups([rollout(0)], hook(lambda *_: SimpleNamespace(keep=np.bool_(False))), ARGS)
    assert kept == [] and len(lines) == 1


def test_a_filter_that_raises_is_named():
    def raises(*_):
        raise KeyError("score")

    with pytest.raises(HookFailed, match=r"hooks.mine.raises raised for prompt group 0: KeyError: 'score'"):
        drop_groups([rollout(0)], hook(raises), ARGS)
    with pytest.raises(HookFailed, match=r"hooks.mine.raises raised: KeyError"):
        figures_of([rollout(0)], hook(raises), ARGS, 0)
