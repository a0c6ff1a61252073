"""`fanline hook check`: what a person learns of a hook before any run, with a real small model."""

import io
import json
import signal
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console

from infra.errors import ConfigurationError
from infra.hook_check.check import check_hook, scenario_of
from infra.hook_check.engine import SmallModel
from infra.hook_check.limit import HookTooSlow, time_limit
from infra.hook_check.report import HookReport, rendered
from tests.flows import user_hooks

PACKAGES = ("hooks", "tests")
USER, ODD = "tests.flows.user_hooks", "tests.infra.hook_check.odd_hooks"
SMALL = ["rollout.prompts=3", "rollout.rollouts_per_prompt=2", "training.global_batch_size=3"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_HOME", str(tmp_path))
    torch.set_num_threads(1)


def check(hook: str, *overrides: str) -> HookReport:
    return check_hook(scenario_of(hook, [*SMALL, *overrides]), PACKAGES)


def text(report: HookReport) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(rendered(report))
    return out.getvalue()


def test_a_good_hook_is_told_with_what_it_did():
    report = check("hooks.subagents:solve_in_parts")
    assert (report.exit_code, report.faults, report.notes) == (0, (), ())
    assert report.fan_outs == {1: 2, 2: 2, 3: 2} and report.rollouts == 6
    assert report.calls == {"part/0": 6, "part/1": 4, "part/2": 2} and report.generated_tokens > 12
    assert "OK  hooks.subagents.solve_in_parts" in text(report) and "part/0 × 6" in text(report)
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (f"{USER}:returns_none", "returned None, for prompt group"),
        (f"{USER}:returns_nothing", "returned an empty list"),
        (f"{USER}:siblings_without_id", "2 siblings with rollout_id None, None"),
        (f"{USER}:raises", "the tool server said no"),
        (f"{ODD}:side_by_side_without_names", "two generations without a name at the same time"),
        (f"{ODD}:in_order_of_ending", "depend on the order in which engine calls end"),
        (f"{ODD}:chance_of_its_own", "chance of its own or keeps state"),
        (f"{ODD}:answer_replaced", "are not those of its tokens"),
        (f"{ODD}:far_too_long", "The engine refuses call 'long' of prompt group"),
    ],
)
def test_a_wrong_hook_is_refused_in_words(hook: str, words: str):
    report = check(hook)
    assert report.exit_code == 1 and words in report.faults[0], report.faults
    assert "REFUSED" in text(report) and json.loads(json.dumps(report.to_dict()))["ok"] is False


@pytest.mark.parametrize("hook", ["in_order_of_calling", "tool_output_masked"])
def test_the_right_way_to_do_the_same_is_fine(hook: str):
    assert check(f"{ODD}.{hook}").faults == ()


@pytest.mark.parametrize("hook", ["waits_for_ever", "blocks_for_ever", "swallows_everything"])
def test_a_hook_that_does_not_end_is_told_when_the_time_is_over(hook: str):
    report = check_hook(scenario_of(f"{ODD}:{hook}", SMALL), PACKAGES, limit_seconds=4)
    assert report.exit_code == 1 and "did not end within 4 seconds" in report.faults[0]
    assert "0 of 6 rollouts had ended" in report.faults[0] or "still being loaded" in report.faults[0]
    assert "--limit SECONDS" in report.faults[0]


def test_the_time_limit_leaves_no_alarm_behind():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(HookTooSlow, match=r"within 0.05 seconds"), time_limit(0.05):
        threading.Event().wait(60)
    with time_limit(60):
        pass
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_groups_of_equal_rewards_are_noted():
    report = check("hooks.subagents:solve_in_parts", f"rollout.reward={ODD}.always_right")
    assert report.faults == () and report.mixed_groups == 0
    assert "0 % of the prompt groups are mixed" in report.notes[-1] and "INCONCLUSIVE" in report.notes[-1]


def test_what_is_worth_knowing_is_noted():
    report = check("hooks.fanout:compact_generate")
    assert report.faults == () and "copies: they hide" in report.notes[0]
    assert "its fan-outs are [1]" in check("hooks.stock:generate").notes[0]


def test_a_failure_that_a_retry_mends_is_a_note(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(user_hooks, "calls", iter(range(1000)))
    report = check(f"{USER}:raises_once")
    (note,) = (words for words in report.notes if "attempts failed" in words)
    assert report.faults == () and "1 attempts failed" in note and "no, once" in note


def test_hooks_of_other_packages_and_wrong_names_are_configuration():
    with pytest.raises(ConfigurationError, match="outside the packages"):
        check_hook(scenario_of("os.path:join", None), PACKAGES)
    with pytest.raises(ConfigurationError, match=r"Did you mean hooks\.subagents\.solve_in_parts"):
        check_hook(scenario_of("hooks.subagents:solve_in_part", None), PACKAGES)
    with pytest.raises(ConfigurationError, match=r"rollout\.generate"):
        scenario_of("nodots", None)


def test_log_probs_are_those_of_the_model():
    model = SmallModel(Path(__file__).parents[3] / "infra/sources/embedded/tiny")
    tokens = [5, 6, 7, 8]
    every = (model.logits(tokens) / 0.5).log_softmax(-1)
    assert model.log_probs(tokens, 2, 0.5) == pytest.approx([float(every[1, 7]), float(every[2, 8])])
    assert model.log_probs(tokens, 0, 0.5) == []
