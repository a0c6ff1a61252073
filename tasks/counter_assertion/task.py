"""Run every check on what a run left in the store, and conclude. Never cached: a verdict is always looked at anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from infra.errors import FanlineError
from infra.records.sources import ModelRef, PromptsRef
from infra.records.verdict import Verdict, conclude
from infra.run import Run
from infra.settings import settings
from infra.text import shown
from tasks.counter_assertion.counts import counts_by_iteration


@task(task_run_name="assert counters and checks, {run.run_id}", cache_policy=NO_CACHE, persist_result=False)
def assert_counters(
    run: Run, model: ModelRef | None, prompts: PromptsRef | None, fault: FanlineError | None
) -> Verdict:
    """The verdict of a run, also of one that ended early.

    Args:
        model: the downloaded model on this host, for the oracle; None where the download failed.
        prompts: the source's prompts, for the labels; None where the download failed.
        fault: the error that ended the run early, if any. A broken contract is a REGRESSION, anything else INFRA.
    """
    # Here, not at the top: the oracle needs torch, which a flow that is only deployed or listed must not import.
    from tasks.counter_assertion.reading import read_evidence
    from tasks.counter_assertion.registry import run_checks

    evidence = read_evidence(run, model, prompts, fault)
    evidence = replace(evidence, hook_packages=tuple(settings().hook_packages))
    checks = run_checks(evidence)
    key = run.run_id.lower()
    _table(f"counter-{key}", counts_by_iteration(evidence), "Ids by iteration: drawn, called, generated, trained.")
    rows = [{"check": c.name, "status": c.status, "reason": c.reason, "ids": list(c.ids)} for c in checks]
    _table(f"checks-{key}", rows, "Every check of the run and what it found.")
    return conclude(checks, plumbing_only=run.scenario.plumbing_only)


def _table(key: str, rows: list[dict[str, Any]], description: str) -> None:
    table = [{name: shown(value) for name, value in row.items()} for row in rows]
    create_table_artifact(table=table, key=key, description=description)
