import asyncio

from hooks.sample import Sample, Status
from tasks.rollout.calls import RolloutCalls
from tasks.rollout.partial import resumed, to_continue
from tests.rollout.conftest import SETTINGS, case
from tests.rollout.function_engine import BytesTokenizer, FunctionEngine


def aborted(tokens: int) -> Sample:
    sample = Sample(index=0, prompt="1+1=", tokens=[1, 2], status=Status.ABORTED)
    sample.append_response_tokens(tokens=range(3, 3 + tokens), log_probs=[-1.0] * tokens)
    return sample


def test_an_aborted_rollout_of_a_fan_out_group_is_kept_with_its_tokens():
    known = case("ids-10")["expect"]
    kept = to_continue([[aborted(known["tokens kept"])], Sample(status=Status.COMPLETED)])
    assert len(kept) == known["requeued"] and kept[0][0].response_length == known["tokens kept"]


def test_old_tokens_leave_the_loss_and_the_budget_counts_them():
    known = case("budget-2")["input"]
    before = aborted(known["old tokens"])
    sample = resumed(before, mask_offpolicy=known["mask_offpolicy"])
    engine = FunctionEngine(length=known["new tokens"])
    calls = RolloutCalls(
        settings=SETTINGS, index=0, engine=engine, tokenizer=BytesTokenizer(), already_used=sample.response_length
    )
    asyncio.run(calls.generate(sample, {}, None))
    assert sample.loss_mask == case("budget-2")["expect"]["mask"]
    assert engine.requests[0]["max_new_tokens"] == 95 and len(engine.requests[0]["input_ids"]) == 7
    assert before.loss_mask == [1] * 5 and before.status is Status.ABORTED


def test_without_the_mask_old_tokens_are_trained_too():
    assert resumed(aborted(5), mask_offpolicy=False).loss_mask == [1] * 5
