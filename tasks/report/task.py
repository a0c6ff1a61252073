"""Publish the report of a run: files in the store, artifacts on Prefect's page."""

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from infra.open_run import code_digest
from infra.records.verdict import Verdict
from infra.run import Run
from infra.store import ObjectRef
from infra.text import shown


@task(task_run_name="report {verdict.outcome.name}", cache_policy=NO_CACHE, persist_result=False)
def publish_report(run: Run, verdict: Verdict, seconds: dict[str, float]) -> ObjectRef:
    """Publish everything that people and machines read of a run; gives back where `summary.json` is.

    Args:
        seconds: wall-clock seconds by stage.
    """
    # Here, not at the top: matplotlib and torch are not needed to deploy or to list a flow.
    from infra.environment import describe
    from tasks.report.markdown import markdown, step_rows
    from tasks.report.plot import data_uri, png
    from tasks.report.publish import publish
    from tasks.report.summary import figures_of, summarise

    figures = figures_of(run)
    environment = describe(run.scenario.device)
    summary = summarise(run, verdict, seconds, environment, figures, code_digest=code_digest())
    image = png(figures)
    published = publish(run, summary, image)
    key = run.run_id.lower()
    create_markdown_artifact(
        markdown(summary, data_uri(image)), key=f"summary-{key}", description=summary["message"][:200]
    )
    steps = [{name: shown(value) for name, value in row.items()} for row in step_rows(summary)]
    create_table_artifact(table=steps, key=f"steps-{key}", description="Reward, loss and gradient by step.")
    return published.summary
