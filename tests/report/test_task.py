"""Counter assertion and report as Prefect tasks, against a real Prefect server."""

import asyncio

import pytest

from infra.records.verdict import Outcome
from infra.run import Run
from tests.counter_assertion.plain_loop import PlainLoop, scenario, tiny_qwen2

pytestmark = pytest.mark.prefect


async def _artifacts(url: str) -> dict:
    import httpx

    async with httpx.AsyncClient(base_url=url) as client:
        found = (await client.post("/artifacts/latest/filter", json={"limit": 200})).raise_for_status().json()
    return {a["key"]: a for a in found if "plain-loop-task" in (a["key"] or "")}


def test_verdict_and_report_reach_the_store_and_the_page(prefect_url, tmp_path):
    from prefect import flow
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from tasks.counter_assertion.task import assert_counters
    from tasks.report.task import publish_report

    store, spool = str(tmp_path / "store"), tmp_path / "spool"
    short = scenario(rollout={"iterations": 1})
    run = Run(run_id="plain-loop-task", scenario=short, store_uri=store, spool=spool)
    given = PlainLoop(run, tiny_qwen2(tmp_path / "model")).go()

    @flow(persist_result=False)
    def look():
        verdict = assert_counters(*given, None)
        return verdict, publish_report(run, verdict, {"rollout": 1.0})

    with temporary_settings({PREFECT_API_URL: prefect_url}):
        verdict, summary = look()
    assert verdict.outcome is Outcome.PASS, verdict.message
    assert run.store.read_json(summary)["verdict"] == "PASS"
    artifacts = asyncio.run(_artifacts(prefect_url))
    page = artifacts["summary-plain-loop-task"]["data"]
    assert page.startswith("# PASS")
    assert "data:image/png;base64," in page
    assert {"checks-plain-loop-task", "counter-plain-loop-task", "steps-plain-loop-task"} <= set(artifacts)
