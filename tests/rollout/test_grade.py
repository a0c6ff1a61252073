import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hooks.sample import Sample
from infra.errors import ContractViolation, HookFailed
from infra.hook_loading import Hook
from tasks.rollout.contract import Rollout
from tasks.rollout.grade import GradingStage, grade_all
from tests.cases_of import case
from tests.rollout.conftest import slot


def rollout(index: int, fan_out: int, *, group_index: int | None = None) -> Rollout:
    where = slot(index, group_index=group_index)
    siblings = [
        Sample(group_index=where.group_index, index=index, rollout_id=index, response=f"{index}.{k}")
        for k in range(fan_out)
    ]
    return Rollout(slot=where, hook="hooks.mine", attempt=1, siblings=siblings)


def grade(rollouts: list[Rollout], function: Callable[..., Any], *, samples: bool = False, apart: bool = False, **args):
    hook = Hook("hooks.rewards.mine", function, takes_samples=samples)
    stage = GradingStage(
        args=SimpleNamespace(reward_key=None, **args) if "reward_key" not in args else SimpleNamespace(**args),
        hook_of=lambda r: hook,
        scored_apart=apart,
        concurrency=4,
        hook_seconds=0.2,
    )
    asyncio.run(grade_all(rollouts, stage))
    return [s.reward for r in rollouts for s in r.siblings]


async def sibling_number(args: Any, sample: Sample) -> float:
    return float(sample.response.split(".")[1])


def test_the_last_sibling_is_graded_once_and_all_carry_its_reward():
    asked = []

    async def reward(args: Any, sample: Sample) -> float:
        asked.append(sample.response)
        return await sibling_number(args, sample)

    assert grade([rollout(0, 3), rollout(1, 1)], reward) == [2.0, 2.0, 2.0, 0.0]
    assert sorted(asked) == ["0.2", "1.0"]


def test_siblings_scored_apart_are_each_asked_for():
    assert grade([rollout(0, 3)], sibling_number, apart=True) == [0.0, 1.0, 2.0]


def test_a_batch_reward_answers_for_every_sample_of_a_group():
    known = case("ids-9")
    (siblings,) = known["input"]["group"]
    asked = []

    def reward(args: Any, samples: list[Sample]) -> list[float]:
        asked.append(len(samples))
        return [1.0] * len(samples)

    assert len(grade([rollout(0, len(siblings))], reward, samples=True)) == known["expect"]["rewards"]
    grade(
        [rollout(0, 2, group_index=0), rollout(1, 1, group_index=0), rollout(2, 1, group_index=1)], reward, samples=True
    )
    assert asked == [2, 3, 1]


def test_an_async_batch_reward_is_awaited():
    async def reward(args: Any, samples: list[Sample]) -> list[float]:
        return [0.5] * len(samples)

    assert grade([rollout(0, 2)], reward, samples=True) == [0.5, 0.5]


@pytest.mark.parametrize("answer", ["case", [1.0] * 3, None, "ab"])
def test_another_number_of_rewards_is_refused(answer: Any):
    known = case("ids-13")["input"]
    answer = known["custom reward returns"] if answer == "case" else answer
    said = {1: "1 reward,", 3: "3 rewards,"}.get(len(answer) if isinstance(answer, list) else 0, "a ")
    with pytest.raises(ContractViolation, match=f"got 2 samples and returned {said}.*rollout 6 of prompt group 6"):
        grade([rollout(6, known["siblings"])], lambda args, samples: answer, samples=True)


def test_siblings_that_disagree_are_refused():
    with pytest.raises(ContractViolation, match=r"rollout 3 have the rewards 0.0, 1.0.*prompt group 3.*scored_apart"):
        grade([rollout(3, 2)], lambda args, samples: [0.0, 1.0], samples=True)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (None, "no reward"),
        (math.nan, "the reward nan"),
        (math.inf, "the reward inf"),
        ("1", "the reward '1'"),
        ({}, "{}"),
    ],
)
def test_what_is_not_a_finite_number_is_refused_by_id(reward: Any, words: str):
    async def hook(args: Any, sample: Sample) -> Any:
        return reward

    with pytest.raises(ContractViolation, match=f"gave .*{words}.* to rollout 3, .*prompt group 3"):
        grade([rollout(3, 1)], hook)


def test_a_dict_reward_is_kept_and_its_entry_counts():
    async def hook(args: Any, sample: Sample) -> Any:
        return {"score": 0.5, "why": "half"}

    assert grade([rollout(0, 2)], hook, reward_key="score") == [{"score": 0.5, "why": "half"}] * 2
    with pytest.raises(ContractViolation, match="no reward under reward_key 'other'"):
        grade([rollout(0, 1)], hook, reward_key="other")


def test_a_reward_hook_that_raises_is_named_with_the_answer_and_never_a_zero():
    async def hook(args: Any, sample: Sample) -> float:
        raise ValueError("no number in it")

    with pytest.raises(HookFailed, match=r"hooks.rewards.mine raised for rollout 5 .*'row-5'.*no number in it"):
        grade([rollout(4, 1), rollout(5, 2)][1:], hook)


def test_a_hook_that_hangs_ends_the_stage_with_the_ids_of_its_answer():
    async def hook(args: Any, sample: Sample) -> float:
        return await asyncio.Event().wait()

    with pytest.raises(HookFailed, match=r"rollout 5 .*'row-5'.*longer than rollout.hook_deadline_seconds, 0.2 s"):
        grade([rollout(5, 2)], hook)


def test_rewards_that_the_generate_hook_set_stand():
    given = rollout(0, 2)
    given.siblings[0].reward = 0.25

    async def hook(args: Any, sample: Sample) -> float:
        raise AssertionError("nobody is asked")

    assert grade([given], hook) == [0.25, 0.25]
