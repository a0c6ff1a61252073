"""The shipped hooks on a Sample of slime's shape, with a module of slime's name behind the stock generate."""

import asyncio
import sys
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hooks import fanout, figures, filters, normalize, rewards, stock, subagents
from hooks.rewards.pool import GraderFailed


@dataclass
class SlimeSample:
    """The fields of slime's Sample that its own generate touches; it has no `rollout_id`."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    group_index: int | None = None
    index: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | None = None
    loss_mask: list[int] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Any) -> float | None:
        return self.reward


@pytest.fixture(autouse=True)
def slime(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """slime's module of that name: answers "7", and takes the response out of the dict it gets, as slime does."""
    seen: list[dict[str, Any]] = []

    async def generate(args: Any, sample: SlimeSample, sampling_params: dict[str, Any]) -> SlimeSample:
        seen.append({"args": args, "prompt": sample.prompt, **sampling_params})
        sampling_params["max_new_tokens"] -= sample.response_length
        sample.tokens = [*(sample.tokens or sample.prompt.encode()), 55]
        sample.response, sample.response_length = sample.response + "7", sample.response_length + 1
        sample.status = SlimeSample.Status.COMPLETED
        return sample

    for name in ("slime", "slime.rollout", "slime.rollout.sglang_rollout"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["slime.rollout.sglang_rollout"].generate = generate  # type: ignore[attr-defined]
    return seen


ARGS = SimpleNamespace(grpo_std_normalization=False, reward_key=None)
PARAMS = {"max_new_tokens": 24, "temperature": 1.0}


def test_compact_generate_runs_on_slimes_generate(slime: list[dict[str, Any]]):
    siblings = asyncio.run(fanout.compact_generate(ARGS, SlimeSample(index=2, group_index=1, prompt="3+4="), PARAMS))
    assert [s.rollout_id for s in siblings] == [2, 2, 2] and [s.response for s in siblings] == ["7"] * 3
    assert len(slime) == 1 and slime[0]["args"] is ARGS


def test_solve_in_parts_runs_on_slimes_generate(slime: list[dict[str, Any]]):
    sample = SlimeSample(index=1, metadata={"parts": ["3+4=", "{answer}+5="]})
    siblings = asyncio.run(subagents.solve_in_parts(ARGS, sample, PARAMS))
    assert [call["prompt"] for call in slime] == ["3+4=", "7+5="] and {type(s) for s in siblings} == {SlimeSample}


def test_draft_and_revise_needs_no_hook_options(slime: list[dict[str, Any]]):
    siblings = asyncio.run(subagents.draft_and_revise(ARGS, SlimeSample(index=1, prompt="3+4="), PARAMS))
    assert len(siblings) == 2 and "> 7" in siblings[1].prompt


def test_group_index_normalisation_runs_on_slimes_sample():
    samples = [
        SlimeSample(index=k, group_index=0, reward=r, status=SlimeSample.Status.COMPLETED)
        for k, r in enumerate([1.0, 0.0])
    ]
    for sample in samples:
        sample.rollout_id = sample.index  # type: ignore[attr-defined]
    assert list(fanout.grpo_normalize_by_group_index(ARGS, samples)[1]) == [0.5, -0.5]


def test_normalisation_takes_each_sample_without_a_rollout_id_for_a_rollout_of_its_own():
    statuses = [SlimeSample.Status.COMPLETED] * 2 + [SlimeSample.Status.ABORTED]
    samples = [
        SlimeSample(index=k, group_index=0, reward=r, status=status)
        for k, (r, status) in enumerate(zip([1.0, 0.0, 0.0], statuses, strict=True))
    ]
    for hook in (normalize.by_rollout, normalize.by_sample):
        assert hook(ARGS, samples)[1] == [0.5, -0.5, 0.0]
    samples[1].reward = None
    with pytest.raises(normalize.RewardRefused, match="index 1"):
        normalize.by_rollout(ARGS, samples)


def test_reward_hooks_run_on_slimes_sample():
    assert asyncio.run(rewards.math(ARGS, SlimeSample(index=2, response="\\boxed{5}", label="5"))) == 1.0
    with pytest.raises(GraderFailed, match="group 1, rollout None, index 2"):
        asyncio.run(rewards.math(ARGS, SlimeSample(index=2, group_index=1, response="5")))


def test_figures_run_on_slimes_sample():
    samples = [SlimeSample(index=k, response_length=4) for k in (0, 0, 1, 2)]
    assert figures.lengths(ARGS, 0, samples)["samples a rollout"] == 4 / 3


def test_filters_run_on_slimes_groups_with_and_without_fan_out():
    done, cut = SlimeSample.Status.COMPLETED, SlimeSample.Status.TRUNCATED
    group = [SlimeSample(index=k, reward=r, status=done) for k, r in enumerate([1.0, 0.0])]
    assert filters.mixed_rewards(ARGS, group) and not filters.mixed_rewards(ARGS, group[:1])
    fanned = [[SlimeSample(index=2, status=cut), SlimeSample(index=2, status=done)], SlimeSample(index=3, status=done)]
    filters.drop_truncated(ARGS, [group, fanned])
    assert [s.remove_sample for s in (*group, *fanned[0], fanned[1])] == [False, False, True, True, False]


def test_the_hooks_dict_is_its_own(slime: list[dict[str, Any]]):
    params = dict(PARAMS)
    sample = SlimeSample(index=0, prompt="3+4=", response_length=3)
    asyncio.run(stock.generate(ARGS, sample, params, call="plan"))
    assert params == PARAMS and slime[0]["max_new_tokens"] == 24


def test_a_missing_slime_is_said_by_python(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", None)
    with pytest.raises(ModuleNotFoundError, match="slime"):
        asyncio.run(stock.generate(ARGS, SlimeSample(index=0), PARAMS))
