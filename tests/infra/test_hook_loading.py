from collections.abc import Callable
from pathlib import Path

import pytest

import hooks
from infra.errors import ConfigurationError
from infra.hook_loading import Kind, load_hook, load_scenario_hooks
from infra.scenario import load as scenarios

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module into the hooks package; returns its dotted name."""
    monkeypatch.setattr(hooks, "__path__", [*hooks.__path__, str(tmp_path)])

    def module(source: str) -> str:
        name = f"loading_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(source)
        return f"hooks.{name}"

    return module


@pytest.mark.parametrize(
    "path", ["hooks.fanout.compact_generate", "hooks.subagents.solve_in_parts", "hooks.stock.generate"]
)
def test_shipped_generate_hooks_load(path: str):
    assert load_hook(path, "generate").path == path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("hooks.filters.mixed_rewards", "dynamic_filter"),
        ("hooks.filters.drop_truncated", "sample_filter"),
        ("hooks.figures.lengths", "log"),
    ],
)
def test_shipped_filters_and_log_hooks_load(path: str, kind: Kind):
    assert load_hook(path, kind).path == path
    with pytest.raises(ConfigurationError, match=rf"{kind} hook {path}s: .*Did you mean {path}\?"):
        load_hook(f"{path}s", kind)
    with pytest.raises(ConfigurationError, match="lies outside the packages"):
        load_hook("os.path.join", kind)
    with pytest.raises(ConfigurationError, match=r"must not be an async function|can not be called with"):
        load_hook("hooks.rewards.exact_match", kind)


def test_a_scenario_loads_the_hooks_that_it_names():
    filters = [
        "rollout.dynamic_filter=hooks.filters.mixed_rewards",
        "rollout.sample_filter=hooks.filters.drop_truncated",
    ]
    assert [h.path for h in load_scenario_hooks(scenarios.load("tiny", filters))[3:]] == [
        f.split("=")[1] for f in filters
    ]
    with pytest.raises(
        ConfigurationError, match=r"log hook hooks.figures.length: .*Did you mean hooks.figures.lengths"
    ):
        load_scenario_hooks(scenarios.load("tiny", ["rollout.log=hooks.figures.length"]))


@pytest.mark.parametrize("name", scenarios.names())
def test_every_shipped_scenario_names_hooks_that_load(name: str):
    scenario = scenarios.load(name)
    assert load_scenario_hooks(scenario)[0].path == scenario.rollout.generate


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "hooks.fanout.compact_generat",
            r"has no function 'compact_generat'.*Did you mean hooks.fanout.compact_generate\?",
        ),
        ("hooks.fanuot.compact_generate", r"no module hooks.fanuot.*Did you mean hooks.fanout\?"),
        ("hooks.fanout.inner.function", r"no module hooks.fanout.inner"),
        ("hooks.sample.Sample", "has no function 'Sample'"),
        ("hooks.fanout.by_sample", "has to be an async function|can not be called"),
        ("hooks.fanout.grpo_normalize_by_group_index", "can not be called with"),
    ],
)
def test_a_wrong_path_is_said_with_the_nearest_name(path: str, words: str):
    with pytest.raises(ConfigurationError, match=words):
        load_hook(path, "generate")


@pytest.mark.parametrize("path", ["os.system", "subprocess.run", "hooksy.x", "infra.hook_loading.load_hook"])
def test_other_packages_are_not_even_imported(path: str):
    with pytest.raises(ConfigurationError, match=r"lies outside the packages that this deployment allows \(hooks\)"):
        load_hook(path, "reward")


def test_a_deployment_may_allow_its_own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "team_hooks_of_a_test.py").write_text(
        "async def mine(args, sample, sampling_params):\n    return sample\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    hook = load_hook("team_hooks_of_a_test.mine", "generate", allowed=("hooks", "team_hooks_of_a_test"))
    assert hook.function.__name__ == "mine"


def test_what_a_hook_module_imports_is_not_a_hook(write: Write):
    module = write("from subprocess import run\nfrom os import system\n")
    for name in ("run", "system"):
        with pytest.raises(ConfigurationError, match="only imported there"):
            load_hook(f"{module}.{name}", "reward")


def test_a_module_that_does_not_import_is_told_with_its_cause(write: Write):
    with pytest.raises(ConfigurationError, match="does not import: ZeroDivisionError"):
        load_hook(f"{write('1 / 0')}.mine", "generate")


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("generate", "def f(args, sample, sampling_params): ...", "has to be an async function"),
        ("generate", "async def f(args, sample): ...", "can not be called with .args, sample, sampling_params"),
        ("generate", "async def f(args, sample, sampling_params, more): ...", "missing a required argument: 'more'"),
        ("reward", "def f(args, sample): ...", "an async function of one sample, or a function fn.args, samples"),
        ("reward_post_process", "async def f(args, samples): ...", "must not be an async function"),
    ],
)
def test_a_function_of_another_kind_is_refused(kind, source: str, words: str, write: Write):
    with pytest.raises(ConfigurationError, match=words):
        load_hook(f"{write(source)}.f", kind)


def test_the_forms_of_a_hook_are_told_apart(write: Write):
    module = write(
        "def batch(args, samples): ...\n"
        "async def one(args, sample): ...\n"
        "async def evaluates(args, sample, sampling_params, evaluation=False): ...\n"
    )
    assert load_hook(f"{module}.batch", "reward").takes_samples
    assert not load_hook(f"{module}.one", "reward").takes_samples
    assert load_hook(f"{module}.evaluates", "generate").takes_evaluation
