import copy
import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.sample import Sample, Status
from tests.cases_of import case


def test_appending_to_a_shallow_copy_leaves_the_other_alone():
    known = case("ids-12")
    first = Sample(tokens=list(known["input"]["tokens"]), loss_mask=[], rollout_log_probs=[], weight_versions=["v0"])
    second = copy.copy(first)
    new = known["input"]["append to the first of two shallow copies"]
    meta = {"finish_reason": {"type": "stop"}, "weight_version": "v1"}
    first.append_response_tokens(tokens=new, log_probs=[-1.0] * len(new), meta_info=meta)
    assert (first.tokens, second.tokens) == (known["expect"]["first"], known["expect"]["second"])
    assert (second.loss_mask, second.rollout_log_probs, second.weight_versions) == ([], [], ["v0"])


@given(pieces=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_three_response_lists_stay_in_step(pieces: list[tuple[int, bool]]):
    sample = Sample(tokens=[1, 2])
    for count, trainable in pieces:
        sample.append_response_tokens(
            tokens=[5] * count, log_probs=[-1.0] * count if trainable else None, trainable=trainable
        )
    masks = [int(trainable) for count, trainable in pieces for _ in range(count)]
    assert sample.response_length == len(masks) == len(sample.tokens) - 2
    assert (sample.loss_mask or []) == masks
    assert (sample.rollout_log_probs or []) == [-1.0 if m else 0.0 for m in masks]
    assert sample.effective_response_length == sum(masks)


@pytest.mark.parametrize(
    ("given_parts", "words"),
    [
        ({"tokens": [1, 2], "log_probs": [-1.0]}, "2 tokens, 1 log-probs .sample index 3"),
        ({"tokens": [1], "log_probs": None}, "trainable tokens without log-probs"),
        ({"tokens": [1], "log_probs": [-1.0], "trainable": False}, "log-probs on 1 tokens that are not trainable"),
    ],
)
def test_lists_of_another_length_are_errors(given_parts: dict, words: str):
    sample = Sample(index=3, tokens=[9])
    with pytest.raises(ValueError, match=words):
        sample.append_response_tokens(**given_parts)
    assert sample.tokens == [9] and sample.response_length == 0


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("mask", [None, [0, 1]])
def test_log_probs_of_earlier_tokens_are_never_invented(mask: list[int] | None, trainable: bool):
    sample = Sample(index=3, tokens=[9, 1, 2], response_length=2, loss_mask=mask)
    with pytest.raises(ValueError, match=f"{2 if mask is None else 1} trainable tokens so far .*sample index 3"):
        sample.append_response_tokens(tokens=[5], log_probs=[-1.0] if trainable else None, trainable=trainable)
    assert sample.tokens == [9, 1, 2] and sample.rollout_log_probs is None


def test_earlier_tokens_that_are_not_trained_need_no_log_probs():
    sample = Sample(tokens=[9, 1, 2], response_length=2, loss_mask=[0, 0])
    sample.append_response_tokens(tokens=[5], log_probs=[-1.0])
    assert sample.loss_mask == [0, 0, 1] and sample.rollout_log_probs == [0.0, 0.0, -1.0]


def test_slimes_call_with_its_arguments_and_meta_info_is_understood():
    sample = Sample(tokens=[9])
    meta = {"finish_reason": {"type": "length"}, "weight_version": "3"}
    sample.append_response_tokens(object(), tokens=[1], log_probs=[-0.5], meta_info=meta, text="a")
    assert (sample.status, sample.weight_versions, sample.response) == (Status.TRUNCATED, ["3"], "a")


def test_unknown_keys_survive_a_round_trip():
    data = {**Sample(index=1, status=Status.ABORTED).to_dict(), "session_id": "s", "spec_info": {"n": 1}}
    sample = Sample.from_dict(data)
    assert sample.status is Sample.Status.ABORTED and sample.index == 1
    assert json.loads(json.dumps(sample.to_dict())) == json.loads(json.dumps(data))


def test_the_reward_value_is_the_reward_or_its_entry():
    assert Sample(reward=0.5).get_reward_value(SimpleNamespace(reward_key=None)) == 0.5
    assert Sample(reward={"score": 0.25}).get_reward_value(SimpleNamespace(reward_key="score")) == 0.25
