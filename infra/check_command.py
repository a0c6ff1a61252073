"""`fanline check`: the checks once more on records that a run, or somebody else's loop, has left."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from infra.errors import ConfigurationError
from infra.records.format import record
from infra.records.verdict import CheckResult, Outcome, Verdict, conclude
from infra.run import Run
from infra.settings import settings
from infra.stored_run import find_stored, model_if_there
from infra.text import finite
from tasks.download.stage import STAGE as PROMPTS_STAGE
from tasks.report.publish import latest_summary
from tasks.report.terminal import checked


def check_run(
    store_uri: str, name: str | None, only: Sequence[str], *, model: str | None, as_json: bool, foreign: bool
) -> int:
    """Run the checks on a stored run and print what they find; returns the verdict's exit code.

    Args:
        name: of the run; None where the store holds one only.
        only: names of checks; the verdict is then over these alone. All of them where empty.
        model: where the run's first weights are, instead of the scenario's source.
        foreign: the records are of another stack, which left no summary of its own.
    Raises:
        ConfigurationError: no such run or check, or records of another version.
    """
    from tasks.counter_assertion.registry import NAMES

    if unknown := [n for n in only if n not in NAMES]:
        raise ConfigurationError(f"There is no check {', '.join(unknown)}.", next_step=f"Known: {', '.join(NAMES)}.")
    run = find_stored(store_uri, name)
    results = results_of(run, only, model, summary=None if foreign else latest_summary(run.store, run.run_id))
    verdict = _over_some(results) if only else conclude(results, plumbing_only=run.scenario.plumbing_only)
    if as_json:
        print(json.dumps(finite({"run": run.run_id, **verdict.to_dict()})))
    else:
        Console().print(checked({"run": run.run_id, **verdict.to_dict()}))
    return verdict.outcome.value


def results_of(
    run: Run, only: Sequence[str], model: str | None, *, summary: dict[str, Any] | None
) -> list[CheckResult]:
    """The checks' results on what the store has; a fault that ended the run is taken from its summary."""
    from tasks.counter_assertion.reading import read_evidence
    from tasks.counter_assertion.registry import run_checks

    prompts = run.finished(PROMPTS_STAGE, 0)
    source = record("download-prompts", prompts, run.key("iterations", 0, "download-prompts.json")) if prompts else None
    evidence = read_evidence(run, model_if_there(run, model), source, None)
    evidence = replace(evidence, hook_packages=tuple(settings().hook_packages), fault=_fault_in(summary))
    return run_checks(evidence, only)


def _fault_in(summary: dict[str, Any] | None) -> Any:
    """What ended the run, as its last report has it: a refused hook, or a fault that is a result of its own."""
    from tasks.counter_assertion.evidence import Fault
    from tasks.counter_assertion.registry import NAMES

    for c in summary["checks"] if summary else ():
        broken = c["name"] == "contract" and c["status"] == "fail"
        if broken or c["name"] not in NAMES:
            kind = c["figures"].get("error", "ContractViolation") if broken else c["name"]
            return Fault(
                kind=kind,
                message=c["reason"],
                ids=tuple(c["ids"]),
                contract=broken,
                regression=c["status"] == "fail",
                inconclusive=c["status"] == "inconclusive",
            )
    return None


def _over_some(results: list[CheckResult]) -> Verdict:
    """The verdict over a few checks by themselves; one that did not run leaves it open."""
    verdict = conclude(results, plumbing_only=True)
    if verdict.outcome in (Outcome.REGRESSION, Outcome.INFRA):
        return verdict
    undecided = [c for c in results if c.status != "pass"]
    if undecided:
        words = "; ".join(f"{c.name}: {c.reason}" for c in undecided)
        return Verdict(outcome=Outcome.INCONCLUSIVE, message=words, checks=tuple(results))
    return Verdict(outcome=Outcome.PASS, message="the checks asked for passed", checks=tuple(results))
