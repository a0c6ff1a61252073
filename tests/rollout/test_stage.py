from collections.abc import Callable

import pytest

from infra.errors import ConfigurationError, ContractViolation, EngineUnavailable, HookFailed
from infra.ledger import read_segment
from infra.records.rollouts import RolloutsRef, read_table
from infra.run import Run
from infra.store import sha256
from tasks.training.cost import ModelShape
from tasks.training.plan import make_plan
from tasks.training.steps import NoFullStep
from tests.rollout.conftest import prompt_rows, publish_prompts, rows_of, run_iteration
from tests.rollout.function_engine import FunctionEngine

MakeRun = Callable[..., Run]
UserHooks = Callable[[str, str], str]


def parts(row: int) -> dict[str, list[str]]:
    return {"parts": [f"{row}+1=", "{answer}+2=", "{answer}+3="][: 1 + row % 3]}


def test_the_table_holds_every_sibling_by_index(make_run: MakeRun):
    run = make_run()
    rows = rows_of(run, run_iteration(run, prompt_rows(3), FunctionEngine()))
    assert [(r["index"], r["sibling"]) for r in rows] == [(i, k) for i in range(16) for k in range(1 + i % 3)]
    assert all(r["rollout_id"] == r["index"] and r["group_index"] == r["index"] // 4 for r in rows)
    assert [r["epoch"] for r in rows if r["sibling"] == 0] == [0] * 12 + [1] * 4
    assert {r["weight_version"] for r in rows} == {"v0"} and {r["reward"] for r in rows} <= {0.0, 1.0}


FILTERS = (
    "rollout.dynamic_filter=hooks.filters.mixed_rewards",
    "rollout.sample_filter=hooks.filters.drop_truncated",
    "rollout.log=hooks.figures.lengths",
)
SOME_RIGHT = "async def some_right(args, sample):\n    return float(sample.index % 8 < 4 and sample.index % 2)\n"


def test_what_filters_take_out_is_in_the_ledger_with_its_reason(make_run: MakeRun, user_hooks: UserHooks):
    short = "rollout.max_response_tokens=4"
    run = make_run(*FILTERS, short, f"rollout.reward={user_hooks('some_right', SOME_RIGHT)}")
    ref = run_iteration(run, prompt_rows(4), FunctionEngine())
    rows, events = rows_of(run, ref), read_segment(run.store, run.run_id, ref.ledger[0])
    dropped = [e for e in events if e["event"] == "dropped"]
    assert {r["group_index"] for r in rows} == {0, 2} and ref.rollouts == 8
    assert [e["index"] for e in dropped] == [4, 5, 6, 7, 12, 13, 14, 15]
    assert {e["reason"] for e in dropped} == {"dynamic filter hooks.filters.mixed_rewards"}
    removed = [(e["rollout_id"], e["sibling"], e["reason"]) for e in events if e["event"] == "removed"]
    wanted = [(r["rollout_id"], r["sibling"]) for r in rows if r["status"] == "truncated"]
    assert wanted and removed == [(*key, "sample filter hooks.filters.drop_truncated") for key in wanted]
    assert [(r["rollout_id"], r["sibling"]) for r in rows if r["remove_sample"]] == wanted
    assert ref.figures["rollouts dropped by the dynamic filter"] == 8
    assert ref.figures["mean reward before the dynamic filter"] == 4 / 16
    assert ref.figures["truncated share"] == len(wanted) / len(rows)
    assert RolloutsRef.from_dict(ref.to_dict()) == ref


def test_an_iteration_that_a_filter_empties_is_stored_and_says_why(make_run: MakeRun, user_hooks: UserHooks):
    run = make_run(*FILTERS, f"rollout.reward={user_hooks('none_right', NONE_RIGHT)}")
    ref = run_iteration(run, prompt_rows(4), FunctionEngine())
    assert (ref.rollouts, ref.samples, ref.figures["samples"]) == (0, 0, 0)
    shape = ModelShape(layers=2, hidden=64, heads=4, key_value_heads=2, head_dim=16, mlp=128, vocabulary=512)
    with pytest.raises(NoFullStep, match=r"0 rollouts, 8 asked for one optimizer step.*rollout.dynamic_filter"):
        make_plan(read_table(run.store, ref.table), run.scenario, shape, 0)


NONE_RIGHT = "async def none_right(args, sample):\n    return 0.0\n"


def test_a_second_iteration_goes_on_with_new_ids(make_run: MakeRun):
    run = make_run()
    first, second = (run_iteration(run, prompt_rows(3), FunctionEngine(), iteration=i) for i in range(2))
    ids = [{r["rollout_id"] for r in rows_of(run, ref)} for ref in (first, second)]
    assert ids == [set(range(16)), set(range(16, 32))]


def test_equal_runs_give_equal_bytes_in_any_order_of_answers(make_run: MakeRun):
    quick, slow = FunctionEngine(), FunctionEngine(delay=lambda seed: seed % 7 / 2000)
    overrides = ("rollout.generate=hooks.subagents.solve_in_parts",)
    refs = [
        run_iteration(make_run(*overrides, run_id="a"), prompt_rows(4, parts), quick),
        run_iteration(make_run(*overrides, "rollout.concurrency=3", run_id="b"), prompt_rows(4, parts), slow),
    ]
    assert refs[0].table.sha256 == refs[1].table.sha256 and refs[0].log_probs.sha256 == refs[1].log_probs.sha256
    other = run_iteration(make_run(*overrides, "seed=8", run_id="c"), prompt_rows(4, parts), FunctionEngine())
    assert other.table.sha256 != refs[0].table.sha256


def test_the_ledger_follows_every_id_from_draw_to_reward(make_run: MakeRun):
    run = make_run()
    source = prompt_rows(3)
    ref = run_iteration(run, source, FunctionEngine())
    events = read_segment(run.store, run.run_id, ref.ledger[0])

    def of(name: str) -> list[dict]:
        return [e for e in events if e["event"] == name]

    drawn = [index for e in of("drawn") for index in e["indices"]]
    assert drawn == list(range(16)) and {e["hook"] for e in of("drawn")} == {run.scenario.rollout.generate}
    texts = {row["prompt_id"]: sha256(row["prompt"].encode()) for row in source}
    assert all(e["prompt_digest"] == texts[e["prompt_id"]] for e in of("drawn"))
    assert sorted(e["index"] for e in of("called")) == drawn
    keys = [(r["rollout_id"], r["sibling"]) for r in rows_of(run, ref)]
    for name in ("generated", "graded"):
        assert [(e["rollout_id"], e["sibling"]) for e in of(name)] == keys
    assert [len(e["calls"]) for e in of("generated") if e["sibling"] == 0] == [1] * 16
    log_probs = read_table(run.store, ref.log_probs).to_pylist()
    assert [(r["rollout_id"], r["sibling"]) for r in log_probs] == keys


def test_unset_ids_get_the_smallest_unused_of_the_run(make_run: MakeRun):
    run = make_run("rollout.generate=hooks.stock.generate")
    _, second = (run_iteration(run, prompt_rows(3), FunctionEngine(), iteration=iteration) for iteration in range(2))
    assert [r["rollout_id"] for r in rows_of(run, second)] == list(range(16, 32))


REUSES = """
async def reuses(args, sample, sampling_params):
    from hooks.stock import generate
    sample.rollout_id = sample.index % 16
    return await generate(args, sample, sampling_params)
"""


def test_an_id_of_an_earlier_iteration_is_refused(make_run: MakeRun, user_hooks: UserHooks):
    run = make_run(f"rollout.generate={user_hooks('reuses', REUSES)}")
    run_iteration(run, prompt_rows(3), FunctionEngine())
    with pytest.raises(ContractViolation, match="rollout_id 0, which an earlier iteration of this run has used"):
        run_iteration(run, prompt_rows(3), FunctionEngine(), iteration=1)


def test_ids_of_dropped_groups_are_not_given_out_again(make_run: MakeRun, user_hooks: UserHooks):
    run = make_run(
        "rollout.generate=hooks.stock.generate", FILTERS[0], f"rollout.reward={user_hooks('some_right', SOME_RIGHT)}"
    )
    refs = [run_iteration(run, prompt_rows(4), FunctionEngine(), iteration=i) for i in range(2)]
    stored = [{r["rollout_id"] for r in rows_of(run, ref)} for ref in refs]
    assert stored == [{i for i in range(first, first + 16) if i % 8 < 4} for first in (0, 16)]


REUSES_DROPPED = """
from hooks.stock import generate

async def reuses_dropped(args, sample, sampling_params):
    sample.rollout_id = 5 if sample.index == 16 else sample.index
    return await generate(args, sample, sampling_params)
"""


def test_an_id_of_a_dropped_group_is_refused_in_a_later_iteration(make_run: MakeRun, user_hooks: UserHooks):
    hooks = (
        f"rollout.generate={user_hooks('reuses_dropped', REUSES_DROPPED)}",
        f"rollout.reward={user_hooks('some_right', SOME_RIGHT)}",
    )
    run = make_run(*hooks, FILTERS[0])
    assert 5 not in {r["rollout_id"] for r in rows_of(run, run_iteration(run, prompt_rows(4), FunctionEngine()))}
    with pytest.raises(ContractViolation, match="rollout_id 5, which an earlier iteration of this run has used"):
        run_iteration(run, prompt_rows(4), FunctionEngine(), iteration=1)


NO_ID = """
import copy
from hooks.stock import generate

async def no_id(args, sample, sampling_params):
    made = await generate(args, sample, sampling_params)
    return [made, copy.deepcopy(made)]
"""


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("none", "async def none(args, sample, sampling_params):\n    return None\n", "returned None"),
        ("empty", "async def empty(args, sample, sampling_params):\n    return []\n", "returned an empty list"),
        ("no_id", NO_ID, "returned 2 siblings with rollout_id None, None"),
    ],
)
def test_a_refusal_publishes_no_rollouts_and_stands_in_the_ledger(
    name: str, source: str, words: str, make_run: MakeRun, user_hooks: UserHooks
):
    path = user_hooks(name, source)
    run = make_run(f"rollout.generate={path}", "rollout.concurrency=1")
    with pytest.raises(ContractViolation, match=f"Hook {path} {words}, for prompt group 0 .* index 0"):
        run_iteration(run, prompt_rows(3), FunctionEngine())
    assert not run.store.keys(f"runs/{run.run_id}/iterations")
    (segment,) = run.store.keys(f"runs/{run.run_id}/ledger")
    last = run.store.read_unverified(segment).splitlines()[-1]
    assert b'"event": "ended early"' in last and words.encode() in last


def test_a_lost_engine_leaves_its_ledger_and_a_second_try_finishes(make_run: MakeRun):
    run = make_run()
    with pytest.raises(EngineUnavailable):
        run_iteration(run, prompt_rows(3), FunctionEngine(dies_after=9))
    ref = run_iteration(run, prompt_rows(3), FunctionEngine())
    undisturbed = run_iteration(make_run(run_id="other"), prompt_rows(3), FunctionEngine())
    assert ref.table.sha256 == undisturbed.table.sha256
    assert len(ref.ledger) == 1 and len(run.store.keys(f"runs/{run.run_id}/ledger")) == 2


def test_a_prompt_may_name_its_own_hooks(make_run: MakeRun, user_hooks: UserHooks):
    reward = user_hooks("seven", "async def seven(args, sample):\n    return 7.0\n")

    def metadata(row: int) -> dict[str, str]:
        return {"generate_function_path": "hooks.stock.generate", "custom_rm_path": reward} if row == 1 else {}

    run = make_run()
    rows = rows_of(run, run_iteration(run, prompt_rows(4, metadata), FunctionEngine()))
    assert {r["sibling"] for r in rows if r["prompt_id"] == "1"} == {0}
    assert {r["reward"] for r in rows if r["prompt_id"] == "1"} == {7.0}
    assert {r["sibling"] for r in rows if r["prompt_id"] != "1"} == {0, 1, 2}


REWARDS_ITSELF = """
from hooks.stock import generate

async def rewards_itself(args, sample, sampling_params):
    sample = await generate(args, sample, sampling_params)
    sample.reward = 3.0 if sample.index == 2 else None
    return sample
"""


def test_the_ledger_says_which_rewards_a_generate_hook_has_set_itself(make_run: MakeRun, user_hooks: UserHooks):
    run = make_run(f"rollout.generate={user_hooks('rewards_itself', REWARDS_ITSELF)}")
    ref = run_iteration(run, prompt_rows(4), FunctionEngine())
    events = read_segment(run.store, run.run_id, ref.ledger[0])
    assert [e["index"] for e in events if e["event"] == "generated" and e.get("rewarded")] == [2]
    assert [r["reward"] for r in rows_of(run, ref) if r["index"] == 2] == [3.0]


def test_a_hook_that_a_prompt_names_as_null_is_the_scenarios(make_run: MakeRun):
    nulls = {"generate_function_path": None, "custom_rm_path": None}
    run, plain = make_run(), make_run(run_id="plain")
    ref = run_iteration(run, prompt_rows(4, lambda row: nulls), FunctionEngine())
    same = run_iteration(plain, prompt_rows(4), FunctionEngine())
    names = ("rollout_id", "sibling", "response", "reward")
    own, wanted = ([[r[n] for n in names] for r in rows_of(of, made)] for of, made in ((run, ref), (plain, same)))
    assert own == wanted


def test_a_prompt_can_not_name_a_function_outside_the_hook_packages(make_run: MakeRun):
    with pytest.raises(ConfigurationError, match=r"os.system lies outside"):
        run_iteration(make_run(), prompt_rows(4, lambda row: {"custom_rm_path": "os.system"}), FunctionEngine())


def test_metadata_that_is_not_json_is_refused_by_hook_and_ids(make_run: MakeRun, user_hooks: UserHooks):
    source = "from hooks.stock import generate\n\nasync def odd(args, sample, sampling_params):\n"
    source += "    sample.metadata['seen'] = {1}\n    return await generate(args, sample, sampling_params)\n"
    with pytest.raises(ContractViolation, match=r"left a metadata that is not JSON.*prompt group 0"):
        run_iteration(make_run(f"rollout.generate={user_hooks('odd', source)}"), prompt_rows(3), FunctionEngine())


def test_a_reward_hook_that_raises_ends_the_stage_by_name(make_run: MakeRun, user_hooks: UserHooks):
    path = user_hooks("bad", "async def bad(args, sample):\n    raise ValueError('no number')\n")
    run = make_run(f"rollout.reward={path}", "rollout.concurrency=1")
    with pytest.raises(HookFailed, match=f"Reward hook {path} raised for rollout 0 .* no number"):
        run_iteration(run, prompt_rows(3), FunctionEngine())


def test_prompts_are_published_once(make_run: MakeRun):
    run = make_run()
    assert publish_prompts(run, prompt_rows(3)) == publish_prompts(run, prompt_rows(3))
