import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.sample import Sample, Status
from infra.errors import ContractViolation
from infra.records.rollouts import log_probs_table, rollouts_table
from tasks.rollout.contract import Rollout, aborted_reason, assign_rollout_ids, identify, ids_of, siblings_of
from tasks.rollout.draw import Slot
from tasks.rollout.table import log_prob_rows, rollout_rows
from tasks.training.steps import split_steps
from tests.cases_of import case
from tests.rollout.conftest import slot

HOOK = "hooks.mine.generate"


def sample(where: Slot, **fields: Any) -> Sample:
    made = copy.deepcopy(where.sample)
    made.tokens = [1, 2]
    made.append_response_tokens(tokens=[3, 4, 5], log_probs=[-0.5, -1.0, -1.5])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def rollout(where: Slot, *ids: int | None) -> Rollout:
    siblings = siblings_of([sample(where, rollout_id=i) for i in ids], HOOK, where)
    return Rollout(slot=where, hook=HOOK, attempt=1, siblings=siblings)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returned None"),
        ([], "returned an empty list"),
        ("answer", "returned a str .'answer'., not a Sample"),
        ({"tokens": [1]}, "returned a dict"),
        ([None], "returned None at position 0"),
        ([[Sample()]], "returned a list inside a list at position 0"),
    ],
)
def test_what_is_not_a_sample_is_refused_by_hook_group_and_ids(returned: Any, words: str):
    with pytest.raises(ContractViolation, match=words) as refusal:
        siblings_of(returned, HOOK, slot(12, group_index=4))
    message = str(refusal.value)
    assert HOOK in message and "prompt group 4" in message and "'row-4'" in message and "rollout index 12" in message
    assert refusal.value.ids[:2] == (4, 12)


@pytest.mark.parametrize("name", ["ids-7", "ids-8"])
def test_an_empty_fan_out_is_refused_wherever_it_stands(name: str):
    group = case(name)["input"]["group"]
    slots = [slot(k, group_index=0) for k in range(len(group))]

    def returned(shape: list[str], where: Slot) -> Any:
        return [sample(where) for _ in shape]

    with pytest.raises(ContractViolation, match=f"{HOOK} returned an empty list.*prompt id 'row-0'"):
        for shape, where in zip(group, slots, strict=True):
            siblings_of(returned(shape, where), HOOK, where)


@pytest.mark.parametrize("name", ["ids-5", "ids-6"])
def test_samples_and_lists_may_stand_side_by_side(name: str):
    known = case(name)
    rollouts = []
    for k, shape in enumerate(known["input"]["group"]):
        where = slot(k, group_index=0)
        returned = sample(where) if shape == "sample" else [sample(where, rollout_id=9) for _ in shape]
        siblings = siblings_of(returned, HOOK, where)
        rollouts.append(Rollout(slot=where, hook=HOOK, attempt=1, siblings=siblings))
    identify(rollouts)
    assert len(ids_of(rollouts)) == known["expect"]["rollouts"]
    assert sum(len(r.siblings) for r in rollouts) == known["expect"]["samples"]


@pytest.mark.parametrize("ids", [(None, None), (5, None), (5, 6)])
def test_siblings_without_one_common_id_are_refused(ids: tuple[int | None, ...]):
    with pytest.raises(ContractViolation, match=r"2 siblings with rollout_id .*prompt group 0"):
        rollout(slot(0), *ids)


@pytest.mark.parametrize("bad", [-1, "7", 1.0, True, 2**63])
def test_ids_are_non_negative_integers(bad: Any):
    with pytest.raises(ContractViolation, match="gave the rollout_id"):
        rollout(slot(0), bad)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss_mask": [1, 1]}, "response of 3 tokens and 2 values in loss_mask"),
        ({"rollout_log_probs": [-1.0]}, "response of 3 tokens and 1 values in rollout_log_probs"),
        ({"loss_mask": [1, 2, 1]}, "mask value 2"),
        ({"rollout_log_probs": [-1.0, math.nan, -1.0]}, "log-prob nan"),
        ({"rollout_log_probs": [-1.0, -math.inf, -1.0]}, "log-prob -inf"),
        ({"tokens": [3, 4, 5]}, "3 tokens and a response of 3"),
        ({"tokens": [1, 2.5, 3, 4, 5]}, "not token ids"),
        ({"response_length": -1}, "response length -1"),
        ({"group_index": 8}, "changed group_index of sibling 0 to 8"),
        ({"index": 8}, "changed index of sibling 0 to 8"),
        ({"loss_mask": [1, None, 1]}, "mask value None"),
        ({"loss_mask": [1, [1], 1]}, r"mask value \[1\]"),
        ({"loss_mask": [1, np.array([0, 1]), 1]}, "mask value array"),
        ({"loss_mask": 5}, r"gave sibling 0 a int \(5\) as loss_mask.*`loss_mask` is a list of 0 and 1"),
        ({"loss_mask": np.ones(3)}, r"a ndarray \(array.*as loss_mask.*array.tolist"),
        ({"loss_mask": torch.ones(3)}, r"a Tensor \(tensor.*as loss_mask.*array.tolist"),
        ({"rollout_log_probs": [-1.0, None, -1.0]}, "log-prob None"),
        ({"rollout_log_probs": [-1.0, "-1", -1.0]}, "log-prob '-1'"),
        ({"rollout_log_probs": np.zeros(3)}, "as rollout_log_probs.*array.tolist"),
        ({"rollout_log_probs": torch.zeros(3)}, "as rollout_log_probs.*array.tolist"),
        ({"rollout_log_probs": 5}, "a int .5. as rollout_log_probs"),
        ({"tokens": None}, "gave sibling 0 None as tokens.*`tokens` is a list of token ids"),
        ({"tokens": "12345"}, "a str .'12345'. as tokens"),
        ({"tokens": [1, None, 3, 4, 5]}, "not token ids"),
        ({"response_length": None}, "response length None"),
        ({"status": "completed"}, "a str .'completed'. as status.*Sample.Status.COMPLETED"),
        ({"status": "aborted"}, "a str .'aborted'. as status"),
        ({"status": None}, "None as status"),
        ({"metadata": None}, "None as metadata.*a dict"),
        ({"train_metadata": np.zeros(2)}, "a ndarray .* as train_metadata"),
        ({"weight_versions": None}, "None as weight_versions.*a list"),
        ({"label": 7}, "a int .7. as label.*text, or None"),
        ({"response": None}, "None as response.*is text"),
        ({"remove_sample": "no"}, "a str .'no'. as remove_sample.*True or False"),
        ({"remove_sample": np.zeros(2)}, "a ndarray .* as remove_sample"),
    ],
)
def test_a_sample_out_of_step_with_itself_or_its_slot_is_refused(fields: dict[str, Any], words: str):
    where = slot(3)
    with pytest.raises(ContractViolation, match=words) as refusal:
        siblings_of(sample(where, **fields), HOOK, where)
    assert HOOK in str(refusal.value) and refusal.value.ids[:2] == (3, 3)


def test_numbers_of_numpy_and_torch_are_numbers():
    where = slot(3)
    fields = {
        "tokens": list(np.arange(1, 6)),
        "loss_mask": list(torch.tensor([1, 0, 1])),
        "rollout_log_probs": list(torch.tensor([-1.0, -0.5, 0.0])),
        "remove_sample": np.bool_(False),
    }
    siblings = siblings_of(sample(where, **fields, rollout_id=np.int64(3)), HOOK, where)
    made = Rollout(slot=where, hook=HOOK, attempt=1, siblings=siblings)
    (row,) = rollouts_table(rollout_rows([made], lambda reward, rollout: 1.0)).to_pylist()
    assert (row["tokens"], row["loss_mask"]) == ([1, 2, 3, 4, 5], [1, 0, 1])
    assert log_probs_table(log_prob_rows([made])).to_pylist()[0]["log_probs"] == [-1.0, -0.5, 0.0]


def test_siblings_in_different_groups_are_refused():
    where = slot(3)
    siblings = [sample(where, rollout_id=3), sample(where, rollout_id=3, group_index=4)]
    with pytest.raises(ContractViolation, match="changed group_index of sibling 1 to 4"):
        siblings_of(siblings, HOOK, where)


def test_one_object_twice_is_refused():
    where = slot(3)
    one = sample(where, rollout_id=3)
    with pytest.raises(ContractViolation, match="same Sample object twice"):
        siblings_of([one, one], HOOK, where)


def test_a_sample_that_a_hook_built_anew_gets_the_ids_of_its_slot():
    given, wanted = case("ids-3")["input"], case("ids-3")["expect"]
    rollouts = []
    for k in range(given["samples"]):
        siblings = siblings_of(Sample(index=given["index"][k], tokens=[1]), HOOK, slot(k))
        rollouts.append(Rollout(slot=slot(k), hook=HOOK, attempt=1, siblings=siblings))
    identify(rollouts)
    filled = [r.siblings[0].index for r in rollouts]
    assert filled == [0, 1, 2, 3]
    assert len(ids_of(rollouts)) == wanted["rollouts"]
    for index in (filled, given["index"]):
        split = split_steps(index, [r.rollout_id for r in rollouts], given["global_batch_size"])
        assert (len(split.steps), split.left_over) == (wanted["steps"], ())


def test_unset_ids_are_filled_by_the_smallest_unused():
    known = case("ids-1")
    assert assign_rollout_ids(known["input"]["rollout_ids"]) == known["expect"]["rollout_ids"]
    assert assign_rollout_ids(known["input"]["rollout_ids"], {1, 2, 7}) == [3, 5, 5, 4, 0, 6]
    assert len(set(assign_rollout_ids(case("ids-2")["input"]["rollout_ids"]))) == case("ids-2")["expect"]["rollouts"]


@given(ids=st.lists(st.none() | st.integers(0, 12), max_size=20), used=st.sets(st.integers(0, 12)))
@settings(max_examples=100, deadline=None)
def test_filled_ids_are_new_smallest_and_in_order(ids: list[int | None], used: set[int]):
    used -= {i for i in ids if i is not None}
    filled = assign_rollout_ids(ids, used)
    assert all(was is None or was == now for was, now in zip(ids, filled, strict=True))
    new = [now for was, now in zip(ids, filled, strict=True) if was is None]
    others = {i for i in ids if i is not None} | used
    free = [i for i in range(len(others) + len(ids)) if i not in others]
    assert new == free[: len(new)]


def test_one_id_in_two_prompt_groups_is_refused_by_both():
    known = case("ids-4")["input"]
    first, last = known["group_index"][0], known["group_index"][-1]
    shared = known["rollout_ids"][0]
    rollouts = [rollout(slot(0, group_index=first), shared, shared), rollout(slot(1, group_index=last), shared, shared)]
    with pytest.raises(ContractViolation, match=f"rollout_id {shared} to prompt groups {first} and {last}"):
        identify(rollouts)


def test_one_id_in_two_rollouts_of_a_group_is_refused():
    with pytest.raises(ContractViolation, match=r"two rollouts of prompt group 0: rollout index 0 .* rollout index 1"):
        identify([rollout(slot(0, group_index=0), 4), rollout(slot(1, group_index=0), 4)])


def test_an_id_of_an_earlier_iteration_is_refused():
    with pytest.raises(ContractViolation, match="rollout_id 4, which an earlier iteration"):
        identify([rollout(slot(0), 4)], used={4})


@st.composite
def iterations(draw: st.DrawFn) -> list[list[list[int | None]]]:
    """Per iteration and slot, the siblings' ids: single or listed, with the index as id or unset."""
    made, index = [], 0
    for _ in range(draw(st.integers(1, 3))):
        shapes: list[list[int | None]] = []
        for _ in range(draw(st.integers(1, 6))):
            fan_out = draw(st.integers(1, 3))
            shapes.append([index] * fan_out if fan_out > 1 or draw(st.booleans()) else [None])
            index += 1
        made.append(shapes)
    return made


@given(run=iterations())
@settings(max_examples=100, deadline=None)
def test_ids_are_unique_in_the_run_for_any_mix_of_shapes(run: list[list[list[int | None]]]):
    used: set[int] = set()
    index = 0
    for shapes in run:
        rollouts = []
        for ids in shapes:
            rollouts.append(rollout(slot(index, per_group=2), *ids))
            index += 1
        identify(rollouts, used)
        new = [r.rollout_id for r in rollouts]
        assert len(set(new)) == len(new) and not used & set(new)
        assert all(len({s.rollout_id for s in r.siblings}) == 1 for r in rollouts)
        used |= ids_of(rollouts)


def test_an_aborted_sibling_is_the_whole_rollouts_reason():
    where = slot(0)
    statuses = [Status(name) for name in case("ids-11")["input"]["siblings"]]
    siblings = [sample(where, rollout_id=0, status=s) for s in statuses]
    assert aborted_reason(siblings) == "sibling 1 of 2 aborted"
    assert aborted_reason(siblings[:1]) is None
