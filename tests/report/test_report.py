"""What people and machines read of a run, from records alone."""

import io
import json
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from infra.environment import describe
from infra.records.training import StepResult
from infra.records.verdict import CheckResult, conclude
from infra.run import Run
from infra.scenario.load import load
from infra.text import shown
from tasks.report.html import html
from tasks.report.junit import junit
from tasks.report.markdown import markdown
from tasks.report.plot import MOST_BYTES, data_uri, png
from tasks.report.publish import latest_summary, publish
from tasks.report.summary import IterationFigures, summarise
from tasks.report.terminal import rendered

CHECKS = (
    CheckResult(name="counter", status="pass", reason="each of 32 slots was called once"),
    CheckResult(
        name="ledger",
        status="fail",
        reason="rollout 5 <script>alert(1)</script> | was lost",
        figures={"worst": float("nan"), "most": float("inf")},
        ids=(5, (5, 1)),
    ),
    CheckResult(name="non-vacuity", status="inconclusive", reason="rewards never differ"),
    CheckResult(name="determinism", status="not run", reason="no replay"),
)


def _step(iteration: int, step: int, norm: float = 0.5) -> StepResult:
    return StepResult(
        iteration=iteration,
        step=step,
        loss=0.25,
        rollout_terms={1: 0.25},
        gradient_norm=norm,
        learning_rate=1e-3,
        clip_fraction=0.0,
        max_ratio_error=0.0,
        approx_kl=0.0,
        entropy=1.0,
        tokens=10,
        seconds=0.1,
        weights_digest=f"digest-{iteration}-{step}",
    )


FIGURES = [
    IterationFigures(
        iteration=i, reward=0.25 * i, rollouts=16, samples=31, steps=(_step(i, 0), _step(i, 1, float("inf")))
    )
    for i in range(3)
]


@pytest.fixture
def run(tmp_path):
    return Run(run_id="tiny-1", scenario=load("tiny"), store_uri=str(tmp_path / "store"), spool=tmp_path / "spool")


@pytest.fixture
def summary(run):
    verdict = conclude(CHECKS, plumbing_only=False)
    return summarise(run, verdict, {"rollout": 1.25}, describe("cpu"), FIGURES, code_digest="c" * 64)


def test_the_summary_is_json_with_the_verdict_and_what_did_not_run(summary):
    again = json.loads(json.dumps(summary, allow_nan=False))
    assert next(iter(again)) == "verdict"
    assert (again["verdict"], again["exit_code"]) == ("REGRESSION", 1)
    assert again["message"].startswith("ledger: rollout 5")
    assert again["not_run"] == ["determinism"]
    assert again["checks"][1]["figures"] == {"worst": "nan", "most": "inf"}
    assert again["checks"][1]["ids"] == [5, [5, 1]]
    assert again["weights_digest"] == "digest-2-1"
    assert again["seconds_by_stage"] == {"rollout": 1.25}
    assert (again["emulated_gpus"], again["ranks"]) == (True, 2)
    assert again["versions"]["torch"]


def test_a_run_without_a_step_has_no_weights_digest(run):
    empty = summarise(run, conclude(CHECKS, plumbing_only=False), {}, describe("cpu"), [], code_digest="c" * 64)
    assert empty["weights_digest"] is None
    assert markdown(empty).startswith("# REGRESSION")
    assert html(empty, None)
    assert junit(empty)


def test_equal_environments_have_equal_digests():
    one, other = describe("cpu"), describe("cpu")
    assert one.digest == other.digest
    assert one.packages["torch"] and one.python and one.torch_threads


def test_a_rerun_of_the_report_gets_a_new_attempt_and_the_last_one_counts(run, summary):
    image = png(FIGURES)
    first, second = publish(run, summary, image), publish(run, {**summary, "message": "again"}, image)
    assert first.summary.key.endswith("attempts/0001/summary.json")
    assert second.summary.key.endswith("attempts/0002/summary.json")
    latest = latest_summary(run.store, run.run_id)
    assert latest is not None and latest["message"] == "again"
    assert latest_summary(run.store, "unknown") is None


def test_the_plot_is_a_small_png_and_the_same_for_the_same_figures():
    image = png(FIGURES)
    assert image.startswith(b"\x89PNG")
    assert len(image) <= MOST_BYTES
    assert image == png(FIGURES)
    assert data_uri(image).startswith("data:image/png;base64,")
    assert png([]).startswith(b"\x89PNG")


def test_markdown_has_the_verdict_first_the_causes_next_and_no_markup_of_the_run(summary):
    page = markdown(summary, "data:image/png;base64,AAAA")
    lines = page.splitlines()
    assert lines[0] == "# REGRESSION — tiny-1"
    assert page.index("**ledger** (fail)") < page.index("## Checks")
    assert "<script>" not in page
    assert "\\| was lost" in page
    assert "(data:image/png;base64,AAAA)" in page
    assert "2 emulated GPUs" in page


def test_html_stands_alone_and_escapes_what_comes_from_the_run(summary):
    page = html(summary, "data:image/png;base64,AAAA")
    assert "<script" not in page
    assert "http" not in page
    assert page.index("REGRESSION") < page.index("Checks")


def test_junit_counts_every_check_once(summary):
    suite = ET.fromstring(junit({**summary, "message": "bell \x07"}))
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "1",
    }
    ledger = next(case for case in suite.iter("testcase") if case.get("name") == "ledger")
    failure = ledger.find("failure")
    assert failure is not None and "rollout 5" in failure.get("message", "")


def test_the_terminal_says_the_verdict_first(summary):
    buffer = io.StringIO()
    Console(file=buffer, width=100).print(rendered(summary))
    lines = buffer.getvalue().splitlines()
    assert lines[0].split() == ["REGRESSION", "tiny-1"]
    assert any("ledger" in line and "rollout 5" in line for line in lines)
    assert any("determinism" in line and "not run" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "text"), [(float("nan"), "nan"), (float("-inf"), "-inf"), (1.5, 1.5), ((1, 2), "[1, 2]"), (None, None)]
)
def test_table_cells_hold_no_nan_or_infinity(value, text):
    assert shown(value) == text
