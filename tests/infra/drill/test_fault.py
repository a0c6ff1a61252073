"""Faults: that the table is whole, that they go in and out again, and that nothing but the drill reaches them."""

import ast
import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import tests.infra.drill.own_faults as own
from flows.fanout_regression import fanout_regression
from infra.drill.choose import chosen
from infra.drill.drill import why_not
from infra.drill.fault import Fault, fault_of, in_a_rank, installed, replaces, resolved
from infra.drill.scene import SCENES, scenes_with
from infra.drill.table import FAULTS
from infra.errors import ConfigurationError
from infra.records.sources import PROMPTS_SCHEMA
from infra.records.verdict import CheckResult, conclude
from infra.scenario.load import load
from infra.settings import Settings
from tasks.counter_assertion.registry import NAMES
from tasks.training import plan, weights

ROOT = Path(__file__).resolve().parents[3]
ALLOWED = {"infra/cli.py": "infra.drill_command.", "infra/bench/clean.py": "infra.drill.stage."}  # no fault in there
DRILL = ("infra/drill/", "infra/drill_command.py", "flows/drill.py")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_of_the_table_names_what_is_there(fault: Fault):
    assert fault.scene in SCENES and fault.must and not set(fault.must) & set(fault.may)
    assert set(fault.must) | set(fault.may) <= set(NAMES)
    for by in fault.replaces.values():
        assert resolved(by).__doc__, f"{by} does not say what goes wrong"
    for target in fault.here():
        assert callable(resolved(target))


def test_names_are_unique():
    assert len({f.name for f in FAULTS}) == len(FAULTS) == 35


@pytest.mark.parametrize("scene", SCENES.values(), ids=lambda s: s.name)
def test_a_scene_is_a_valid_scenario(scene):
    assert scene.scenario().rollout.iterations in (1, 2)


def test_overrides_are_on_top_of_every_scene_and_wrong_ones_are_refused():
    scenes = scenes_with(["dtype=bfloat16", "training.learning_rate=0.5"])
    assert set(scenes) == set(SCENES)
    assert {s.scenario().dtype for s in scenes.values()} == {"bfloat16"}
    assert {s.scenario().training.learning_rate for s in scenes.values()} == {0.5}
    with pytest.raises(ConfigurationError, match=r"training\.speed"):
        scenes_with(["training.speed=1"])


def test_a_fault_goes_in_and_out_again():
    before = plan.sample_weights
    with installed({"tasks.training.plan.sample_weights": "infra.drill.faults_data.token_mean"}):
        assert plan.sample_weights is not before
        assert plan.sample_weights("rollout", [1, 3], [0, 1], [0, 0])[0].tolist() == [0.25, 0.25]
    assert plan.sample_weights is before


def test_a_fault_goes_out_when_the_run_fails():
    before = plan.sample_weights
    with (
        pytest.raises(ZeroDivisionError),
        installed({"tasks.training.plan.sample_weights": "infra.drill.faults_data.token_mean"}),
    ):
        raise ZeroDivisionError
    assert plan.sample_weights is before


def test_a_fault_goes_in_wherever_a_module_has_the_function_and_its_calls_are_counted():
    target, before = "tasks.training.weights.sample_weights", weights.sample_weights
    with installed({target: f"{own.__name__}.twice_the_loss"}) as calls:
        assert plan.sample_weights is weights.sample_weights is not before
        assert calls == {target: 0}
        assert plan.sample_weights("rollout", [1], [0], [0])[0].tolist() == [2.0]
        assert calls == {target: 1}
        late = ModuleType("tasks.imported_meanwhile")
        vars(late)["weigh"] = weights.sample_weights
        sys.modules[late.__name__] = late
    assert plan.sample_weights is weights.sample_weights is before
    assert vars(sys.modules.pop(late.__name__))["weigh"] is before


def test_calls_of_a_coroutine_are_counted_too():
    with installed({"hooks.rewards.exact_match": "infra.drill.faults_rollout.grader_always_zero"}) as calls:
        assert asyncio.run(resolved("hooks.rewards.exact_match")(None, None)) == 0.0
    assert calls == {"hooks.rewards.exact_match": 1}


@pytest.mark.parametrize(("name", "column"), [("texts-shifted", 0), ("labels-shifted", 1)])
def test_a_shifted_column_leaves_the_others(name: str, column: int):
    (fault,) = [f for f in FAULTS if f.name == name]
    rows = [{"prompt_id": f"p{n}", "prompt": f"text {n}", "label": f"{n}", "metadata": "{}"} for n in range(8)]
    source = pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA)

    def drawn() -> list[tuple[str, Any, Any]]:
        slots = resolved("tasks.rollout.stage.draw_slots")(SCENES["base"].scenario(), source, 0)
        return [(s.prompt_id, s.sample.prompt, s.sample.label) for s in slots]

    true = drawn()
    with installed(fault.here()):
        found = drawn()
    assert [f[0] for f in found] == [t[0] for t in true]
    assert found[0][1 + column] == ("text 1", "1")[column] and found[0][2 - column] == true[0][2 - column]


def test_a_cursor_that_stands_still_draws_the_first_rows_in_new_groups():
    with installed({"tasks.rollout.draw.draws": "infra.drill.faults_rollout.cursor_stands_still"}):
        assert resolved("tasks.rollout.draw.draws")(8, 2, 1) == [(2, 0, 0), (3, 1, 0)]


def test_a_fault_goes_into_every_process_that_has_the_function():
    both = Fault(
        name="f",
        what="",
        scene="base",
        must=(),
        replaces=dict.fromkeys(
            (
                "infra.ledger.LedgerWriter.write",
                "megatron.core.not_loaded_here.f",
                "tasks.training.loss.not_loaded_here.f",
                "tasks.not_loaded_here.f",
                "tasks.training.plan.make_plan",
            ),
            "by",
        ),
    )
    ledger, megatron, loss, unknown, planned = both.replaces
    assert set(both.here()) == {ledger, unknown, planned}
    assert set(in_a_rank(both.replaces)) == {ledger, megatron, loss, planned}


def test_a_function_that_is_never_called_is_no_hole_in_the_checks():
    fault, good = fault_of(f"{own.__name__}:twice_the_loss", ("tests",)), _verdict("pass")
    assert why_not(fault, good, {"a.f": 0, "a.g": 2}) == "the replaced function was never called: a.f"
    assert why_not(fault, good, {"a.f": 1}) == "missed: the verdict is PASS"
    assert why_not(fault, _verdict("fail"), {"a.f": 0}) == ""


def _verdict(status):
    names = ("counter", "ledger", "non-vacuity", "loss-oracle")
    return conclude([CheckResult(name=name, status=status, reason="") for name in names], plumbing_only=False)


@pytest.mark.parametrize("path", ["tasks.training.plan.no_such", "no_such.module.f", "tasks.no_such.f.g"])
def test_a_path_that_leads_nowhere_is_refused_by_name(path: str):
    with pytest.raises(ConfigurationError, match=f"There is no {path}"):
        resolved(path)


def test_a_fault_of_ones_own():
    fault = fault_of("tests.infra.drill.own_faults:twice_the_loss", ("hooks", "tests"))
    assert fault == vars(own.twice_the_loss)["__fanline_fault__"]
    assert fault.what == "The loss is twice as large." and fault.scene == "base" and fault.must == ()
    with installed(fault.here()):
        assert plan.sample_weights("rollout", [1], [0], [0])[0].tolist() == [2.0]


def test_a_fault_of_ones_own_lies_in_the_allowed_packages_and_says_what_it_replaces():
    with pytest.raises(ConfigurationError, match="FANLINE_HOOK_PACKAGES=hooks,os"):
        fault_of("os.path:join", ("hooks",))
    with pytest.raises(ConfigurationError, match="does not say what it replaces"):
        fault_of("tests.infra.drill.own_faults.not_marked", ("tests",))


def test_what_is_chosen():
    assert chosen([], [], ("hooks",), quick=False) == list(FAULTS)
    assert {f.name for f in chosen([], [], ("hooks",), quick=True)} < {f.name for f in FAULTS}
    assert [f.name for f in chosen(["token-mean"], [], ("hooks",), quick=True)] == ["token-mean"]
    own_only = chosen([], ["tests.infra.drill.own_faults:twice_the_loss"], ("tests",), quick=False)
    assert [f.name for f in own_only] == ["twice_the_loss"]
    with pytest.raises(ConfigurationError, match="There is no fault token-maen"):
        chosen(["token-maen"], [], ("hooks",), quick=False)


def test_nothing_but_the_drill_imports_faults():
    for path in [p for top in ("flows", "tasks", "hooks", "infra") for p in (ROOT / top).rglob("*.py")]:
        where = path.relative_to(ROOT).as_posix()
        if where.startswith(DRILL):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            imported = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [i for i in imported if i.startswith(("infra.drill", "flows.drill"))]
            assert not [i for i in found if not i.startswith(ALLOWED.get(where, "nothing"))], where


def test_no_scenario_parameter_or_variable_turns_a_fault_on():
    names = {fault.name for fault in FAULTS} | {"fault", "faults", "drill"}
    assert not names & set(Settings.model_fields)
    assert set(fanout_regression.parameters.properties) == {"scenario", "store", "resume_from"}
    for fault in FAULTS:
        for by in fault.replaces.values():
            with pytest.raises(ConfigurationError, match="outside the packages"):
                _load_as_hook(by)
    with pytest.raises(ConfigurationError, match="no such field"):
        load("tiny", ["faults=[token-mean]"])


def _load_as_hook(path: str) -> None:
    from infra.hook_loading import load_hook

    load_hook(path, "generate")


def test_marking_is_all_that_replaces_does():
    def fault(original):
        """Nothing."""
        return original

    assert replaces("tasks.training.plan.sample_weights", must=("steps",))(fault) is fault
    assert vars(fault)["__fanline_fault__"].must == ("steps",)
