"""Evaluations: the rollout stage on prompts of their own, in a namespace of ids, told to the hook, never trained."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from infra.errors import ConfigurationError, ContractViolation
from infra.ledger import read_segment
from infra.records.rollouts import RolloutsRef, write_table
from infra.records.sources import PROMPTS_SCHEMA, PromptsRef
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.scenario.load import load
from tasks.rollout.draw import EVALUATION_IDS
from tasks.rollout.evaluation import EvaluationStage, evaluated
from tests.rollout.conftest import prompt_rows, publish_prompts, rows_of, run_iteration
from tests.rollout.function_engine import BytesTokenizer, FunctionEngine

MakeRun = Callable[..., Run]
ASKED = ("evaluation.data=embedded://arithmetic", "evaluation.rollouts_per_prompt=2", "evaluation.prompts=3")


def evaluate(run: Run, engine: FunctionEngine, iteration: int = 0, rows: int = 5) -> RolloutsRef:
    apart = write_table(run.store, "eval/{digest}.parquet", pa.Table.from_pylist(prompt_rows(rows), PROMPTS_SCHEMA))
    own = PromptsRef(uri="apart", revision="1", table=apart, rows=rows)
    prompts = replace(publish_prompts(run, prompt_rows(9)), evaluation=own)
    stage = EvaluationStage(
        run=evaluated(run), model_path=run.spool / "no-model", tokenizer=BytesTokenizer(), iteration=iteration
    )
    ref = stage.run_with(stage.slots(prompts), lambda: contextlib.nullcontext(engine))
    run.finish("evaluation", iteration, ref.to_dict())
    return ref


def test_its_prompts_number_temperature_and_budget_are_its_own(make_run: MakeRun):
    run = make_run(*ASKED, "evaluation.temperature=0.3", "evaluation.max_response_tokens=5")
    engine = FunctionEngine()
    ref = evaluate(run, engine)
    rows = rows_of(run, ref)
    assert len(engine.requests) == 6 and {r["prompt_id"] for r in rows} == {"0", "1", "2"}
    assert {(r["temperature"], r["max_new_tokens"]) for r in engine.requests} == {(0.3, 5)}
    rewards = {r["rollout_id"]: r["reward"] for r in rows}
    assert ref.figures["mean reward"] == sum(rewards.values()) / 6 and ref.figures["rollouts"] == 6


def test_what_is_not_given_is_as_in_training_without_the_filters(make_run: MakeRun):
    filters = ("rollout.dynamic_filter=hooks.filters.mixed_rewards", "rollout.log=hooks.figures.lengths")
    run = make_run(*ASKED, *filters)
    rollout = evaluated(run).scenario.rollout
    assert (rollout.temperature, rollout.max_response_tokens) == (0.9, 24)
    assert rollout.dynamic_filter is None and evaluate(run, FunctionEngine()).rollouts == 6


def test_ids_are_in_a_namespace_of_their_own_and_training_does_not_notice(make_run: MakeRun):
    run, alone = make_run(*ASKED), make_run(run_id="alone")
    first = run_iteration(run, prompt_rows(4), FunctionEngine())
    rows = [rows_of(run, evaluate(run, FunctionEngine(), iteration=i)) for i in range(2)]
    second = run_iteration(run, prompt_rows(4), FunctionEngine(), iteration=1)
    undisturbed = [run_iteration(alone, prompt_rows(4), FunctionEngine(), iteration=i) for i in range(2)]
    assert [first.table.sha256, second.table.sha256] == [ref.table.sha256 for ref in undisturbed]
    for name, size in (("index", 6), ("rollout_id", 6), ("group_index", 3)):
        ids = [sorted({r[name] for r in part}) for part in rows]
        assert ids == [[EVALUATION_IDS + i * size + k for k in range(size)] for i in range(2)]


def test_rollouts_without_an_id_stay_in_the_namespace_too(make_run: MakeRun):
    run = make_run(*ASKED, "rollout.generate=hooks.stock.generate")
    ids = [sorted(r["rollout_id"] for r in rows_of(run, evaluate(run, FunctionEngine(), iteration=i))) for i in (0, 1)]
    assert ids == [[EVALUATION_IDS + i * 6 + k for k in range(6)] for i in (0, 1)]
    trained = {r["rollout_id"] for r in rows_of(run, run_iteration(run, prompt_rows(4), FunctionEngine()))}
    assert trained == set(range(16))


REUSES = """
from hooks.stock import generate

async def reuses(args, sample, sampling_params):
    sample.rollout_id = int(sample.prompt[0]) * 2 + sample.index % 2
    return await generate(args, sample, sampling_params)
"""


def test_an_id_of_an_earlier_evaluation_is_refused(make_run: MakeRun, user_hooks: Callable[[str, str], str]):
    run = make_run(*ASKED, f"rollout.generate={user_hooks('reuses', REUSES)}")
    evaluate(run, FunctionEngine())
    with pytest.raises(ContractViolation, match="rollout_id 0, which an earlier iteration of this run has used"):
        evaluate(run, FunctionEngine(), iteration=1)


TELLS = """
from hooks.stock import generate

async def tells(args, sample, sampling_params, *, evaluation=None):
    sample.metadata["evaluation"] = evaluation
    return await generate(args, sample, sampling_params)
"""


def test_a_hook_with_the_keyword_is_told(make_run: MakeRun, user_hooks: Callable[[str, str], str]):
    run = make_run(*ASKED, f"rollout.generate={user_hooks('tells', TELLS)}")
    for ref, told in (
        (evaluate(run, FunctionEngine()), "true"),
        (run_iteration(run, prompt_rows(4), FunctionEngine()), "false"),
    ):
        assert {r["metadata"] for r in rows_of(run, ref)} == {f'{{"evaluation": {told}}}'}


def test_its_ledger_is_apart(make_run: MakeRun):
    run = make_run(*ASKED)
    ref = evaluate(run, FunctionEngine())
    events = read_segment(run.store, run.run_id, ref.ledger[0])
    assert {e["stage"] for e in events} == {"evaluation"} and "-evaluation-" in ref.ledger[0].key


def test_aborted_rollouts_are_dropped_with_a_reason_and_not_in_the_mean(make_run: MakeRun):
    run = make_run(*ASKED, "rollout.attempts=1", "rollout.concurrency=1")
    ref = evaluate(run, FunctionEngine(aborts=lambda number, seed: number == 1))
    events = read_segment(run.store, run.run_id, ref.ledger[0])
    (dropped,) = [e for e in events if e["event"] == "dropped"]
    assert dropped["index"] == EVALUATION_IDS + 1 and "aborted" in dropped["reason"]
    assert ref.figures["rollouts"] == ref.rollouts == 5


def test_the_last_iteration_is_always_evaluated():
    scenario = load("tiny", [*ASKED, "evaluation.every=2", "rollout.iterations=5"])
    assert [i for i in range(5) if scenario.evaluates_after(i)] == [1, 3, 4]
    assert not any(load("tiny").evaluates_after(i) for i in range(2))


def test_a_resumed_run_makes_up_for_an_evaluation_that_is_missing(make_run: MakeRun):
    run = make_run(*ASKED, "rollout.iterations=3", "evaluation.every=2")
    assert run.unfinished_iterations() == range(3)
    run.finish("sync", 0, {"iteration": 0})
    assert run.unfinished_iterations() == range(1, 3)
    run.finish("sync", 1, {"iteration": 1})
    assert run.unfinished_iterations() == range(1, 3)
    evaluate(run, FunctionEngine(), iteration=1)
    assert run.unfinished_iterations() == range(2, 3)


def test_slimes_names_and_a_typo():
    view = ScenarioArgs(load("tiny", [*ASKED, "evaluation.every=2"]), "")
    assert (view.eval_interval, view.n_samples_per_eval_prompt, view.eval_temperature) == (2, 2, None)
    assert ScenarioArgs(load("tiny"), "").eval_interval is None
    with pytest.raises(ConfigurationError, match=r"evaluation.evry: there is no such field. Did you mean 'every'"):
        load("tiny", [*ASKED, "evaluation.evry=2"])
    with pytest.raises(ConfigurationError, match=r"evaluation.data.ury: .*Did you mean 'uri'"):
        load("tiny", [*ASKED, "evaluation.data.ury=2"])
