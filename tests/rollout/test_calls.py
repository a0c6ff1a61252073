import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.sample import Sample, Status
from infra.errors import ContractViolation
from tasks.rollout.calls import RolloutCalls, seed_of
from tests.cases_of import case
from tests.rollout.conftest import SETTINGS
from tests.rollout.function_engine import BytesTokenizer, FunctionEngine


def calls(engine: FunctionEngine, **parts: Any) -> RolloutCalls:
    return RolloutCalls(settings=SETTINGS, index=3, engine=engine, tokenizer=BytesTokenizer(), **parts)


async def ask(through: RolloutCalls, call: str | None = None, prompt: str = "1+1=", **params: Any) -> Sample:
    return await through.generate(Sample(index=3, prompt=prompt), {**SETTINGS.sampling_params(), **params}, call)


def test_unnamed_calls_draw_on_what_is_left_once_each():
    known = case("budget-1")
    lengths = known["input"]["calls"]
    engine = FunctionEngine(length=lengths[0])
    context = calls(engine)
    for _ in lengths:
        asyncio.run(ask(context))
    assert [r["max_new_tokens"] for r in engine.requests] == known["expect"]["sent"]


def test_the_same_holds_for_one_sample_that_is_continued():
    engine = FunctionEngine(length=30)
    context, sample = calls(engine), Sample(index=3, prompt="1+1=")
    for _ in range(3):
        asyncio.run(context.generate(sample, SETTINGS.sampling_params(), None))
    assert [r["max_new_tokens"] for r in engine.requests] == [100, 70, 40]
    assert [len(r["input_ids"]) for r in engine.requests] == [4, 34, 64]
    assert sample.response_length == 90 and sample.loss_mask == [1] * 90 and len(sample.weight_versions) == 3


def test_a_spent_account_truncates_without_asking_the_engine():
    engine = FunctionEngine(length=100)
    context = calls(engine)
    asyncio.run(ask(context))
    sample = asyncio.run(ask(context))
    assert len(engine.requests) == 1 and sample.status is Status.TRUNCATED and sample.response_length == 0


def test_a_named_call_has_an_account_of_its_own():
    engine = FunctionEngine(length=30)
    context = calls(engine)
    for call in (None, "plan", "plan", None, "solve/2"):
        asyncio.run(ask(context, call))
    assert [r["max_new_tokens"] for r in engine.requests] == [100, 100, 70, 70, 100]
    assert len({r["seed"] for r in engine.requests}) == 5


def test_a_hook_may_ask_for_less():
    engine = FunctionEngine(length=30)
    context = calls(engine)
    asyncio.run(ask(context, max_new_tokens=8))
    asyncio.run(ask(context))
    assert [r["max_new_tokens"] for r in engine.requests] == [8, 92]


@given(order=st.permutations(["a", "b", "c", "d"]), delays=st.lists(st.integers(0, 3), min_size=4, max_size=4))
@settings(max_examples=30, deadline=None)
def test_named_calls_side_by_side_do_not_depend_on_order_or_timing(order: list[str], delays: list[int]):
    async def both(names: list[str], engine: FunctionEngine) -> dict[str, list[list[int]]]:
        context = calls(engine)

        async def two_turns(name: str) -> list[list[int]]:
            return [(await ask(context, name)).tokens for _ in range(2)]

        answers = await asyncio.gather(*(two_turns(name) for name in names))
        return dict(zip(names, answers, strict=True))

    slow = FunctionEngine(delay=lambda seed: delays[seed % 4] / 2000)
    assert asyncio.run(both(order, slow)) == asyncio.run(both(["a", "b", "c", "d"], FunctionEngine()))


@pytest.mark.parametrize("name", [None, "plan"])
def test_two_calls_on_one_account_at_once_are_refused(name: str | None):
    context = calls(FunctionEngine())

    async def both() -> None:
        await asyncio.gather(ask(context, name), ask(context, name))

    with pytest.raises(ContractViolation, match=r"index 3 runs two generations .* same time.*names of their own"):
        asyncio.run(both())
    assert isinstance(context.fault, ContractViolation)


def test_a_seed_names_the_call_and_nothing_else():
    seeds = {
        seed_of(run, iteration, index, call, turn)
        for run in (0, 1)
        for iteration in (0, 1)
        for index in (0, 1)
        for call in ("", "a", "a/0")
        for turn in (0, 1)
    }
    assert len(seeds) == 48 and all(0 <= s < 2**31 for s in seeds)
    assert seed_of(7, 0, 3, "part/1", 0) == 305220644  # published runs rest on these values


def test_the_prompt_is_tokenised_where_there_are_no_tokens():
    engine = FunctionEngine()
    asyncio.run(ask(calls(engine), prompt="ab"))
    messages: Any = [{"role": "user", "content": "hi"}]
    asyncio.run(ask(calls(engine), prompt=messages))
    given_ids = Sample(index=3, prompt="ab", tokens=[5, 6])
    asyncio.run(calls(engine).generate(given_ids, {}, None))
    assert [bytes(r["input_ids"]) for r in engine.requests] == [b"ab", b"<user>hi<assistant>", b"\x05\x06"]


def test_text_and_status_come_from_the_generation():
    stopped = asyncio.run(ask(calls(FunctionEngine(length=3))))
    assert stopped.status is Status.COMPLETED and stopped.response == bytes(stopped.tokens[-3:]).decode()
    cut = asyncio.run(ask(calls(FunctionEngine(length=30)), max_new_tokens=4))
    assert cut.status is Status.TRUNCATED and cut.response_length == 4
    aborted = asyncio.run(ask(calls(FunctionEngine(aborts=lambda n, s: True))))
    assert aborted.status is Status.ABORTED


@pytest.mark.parametrize(
    ("params", "words"), [({"top_k": 5}, "top_k=5"), ({"temperature": 0}, "temperature 0"), ({"stop": ["x"]}, "stop=")]
)
def test_sampling_that_the_trainer_could_not_follow_is_refused(params: dict[str, Any], words: str):
    with pytest.raises(ContractViolation, match=words):
        asyncio.run(ask(calls(FunctionEngine()), **params))
