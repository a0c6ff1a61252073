import ast
import asyncio
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hooks import fanout, subagents
from hooks.sample import Sample
from hooks.stock import generating_through
from tasks.rollout.calls import CallSettings, RolloutCalls
from tests.rollout.function_engine import BytesTokenizer, FunctionEngine

SETTINGS = CallSettings(seed=7, iteration=0, max_response_tokens=24, temperature=0.9, top_p=1.0, stop_token_ids=())
ARGS = SimpleNamespace(hook_options={}, reward_key=None, grpo_std_normalization=False)
CHAT = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n"


def run(hook: Any, sample: Sample, args: Any = ARGS) -> tuple[list[Sample], RolloutCalls, FunctionEngine]:
    engine = FunctionEngine()
    calls = RolloutCalls(settings=SETTINGS, index=sample.index or 0, engine=engine, tokenizer=BytesTokenizer())
    with generating_through(calls):
        siblings = asyncio.run(hook(args, sample, SETTINGS.sampling_params()))
    return siblings, calls, engine


@pytest.mark.parametrize("index", range(6))
def test_compact_generate_gives_copies_of_one_generation(index: int):
    siblings, calls, _ = run(fanout.compact_generate, Sample(index=index, prompt="1+1=", metadata={"a": [1]}))
    assert len(siblings) == 1 + index % 3 and len(calls.log) == 1
    assert all(s == siblings[0] and s.rollout_id == index for s in siblings)
    assert len({id(s.tokens) for s in siblings}) == len({id(s.metadata["a"]) for s in siblings}) == len(siblings)


def test_normalisation_under_slimes_name_counts_samples():
    rewards = [(0, 0, 1.0)] * 3 + [(0, 1, 0.0)]
    samples = [Sample(group_index=g, rollout_id=r, index=r, reward=x) for g, r, x in rewards]
    raw, normalised = fanout.grpo_normalize_by_group_index(ARGS, samples)
    assert list(raw) == [1.0, 1.0, 1.0, 0.0] and list(normalised) == [0.25, 0.25, 0.25, -0.75]


def test_each_part_asks_with_the_answer_before_it():
    sample = Sample(index=4, prompt="3+4+5+6=", metadata={"parts": ["3+4=", "{answer}+5=", "{answer}+6="]})
    siblings, calls, engine = run(subagents.solve_in_parts, sample)
    answers = [s.response for s in siblings]
    assert [s.prompt for s in siblings] == ["3+4=", f"{answers[0]}+5=", f"{answers[1]}+6="]
    assert [bytes(r["input_ids"]).decode() for r in engine.requests] == [s.prompt for s in siblings]
    assert [c.call for c in calls.log] == ["part/0", "part/1", "part/2"] and {c.asked for c in calls.log} == {24}
    for sibling in siblings:
        assert sibling.rollout_id == 4 and sibling.loss_mask == [1] * sibling.response_length
        assert len(sibling.tokens) == len(str(sibling.prompt)) + sibling.response_length
    assert sample.tokens == [] and sample.prompt == "3+4+5+6="


def test_a_problem_without_parts_is_refused_by_its_index():
    with pytest.raises(ValueError, match=r"sample index 4 has no metadata\['parts'\]"):
        run(subagents.solve_in_parts, Sample(index=4, prompt="3+4="))


@pytest.mark.parametrize("index", [0, 1, 2, 5])
def test_each_revision_quotes_the_text_before_it(index: int):
    sample = Sample(index=index, prompt=CHAT)
    siblings, calls, _ = run(subagents.draft_and_revise, sample)
    assert [c.call for c in calls.log] == ["draft", "revise/1", "revise/2"][: 1 + index % 3]
    assert siblings[0].prompt == CHAT and all(s.rollout_id == index for s in siblings)
    for before, after in itertools.pairwise(siblings):
        assert str(after.prompt).startswith("<|im_start|>user\nWhat is 3 + 4?\n")
        assert f"> {before.response}\n" in str(after.prompt) and subagents.INSTRUCTION in str(after.prompt)
        assert str(after.prompt).endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert str(after.prompt).count("<|im_start|>") == 2


def test_a_revision_of_plain_text_and_of_messages():
    options = {"instruction": "Again."}
    assert subagents.revision_prompt("3+4=", "8", options) == "3+4=\n\nDraft of an answer:\n> 8\n\nAgain.\n"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "3+4?"}]
    revised = subagents.revision_prompt(messages, "8\n9", options)
    assert revised[0] == messages[0] and messages[1]["content"] == "3+4?"
    assert revised[1] == {"role": "user", "content": "3+4?\n\nDraft of an answer:\n> 8\n> 9\n\nAgain."}


def test_a_revision_by_a_template_of_the_scenario():
    options = {"revision": "{prompt} {draft}\n{question}"}
    assert subagents.revision_prompt("1 + 1 = 2\n3 + 4 =", "{question}", options) == (
        "1 + 1 = 2\n3 + 4 = {question}\n3 + 4 ="
    )


def test_hooks_import_nothing_of_the_pipeline():
    folder = Path(fanout.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] in ("tasks", "infra", "flows")], path
