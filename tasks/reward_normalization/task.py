"""Reward normalisation as a Prefect task: add the `advantage` column to the stored rollouts of an iteration."""

from dataclasses import replace

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from infra.hook_loading import load_hook
from infra.ledger import LedgerWriter
from infra.records.rollouts import RolloutsRef, read_table, with_column, write_table
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.settings import settings
from tasks.reward_normalization.normalize import normalised_advantages
from tasks.reward_normalization.table import group_rows, ledger_rows


@task(task_run_name="normalise rewards, iteration {rollouts.iteration}", cache_policy=NO_CACHE, persist_result=False)
def normalize_rewards(run: Run, rollouts: RolloutsRef) -> RolloutsRef:
    """Group-relative advantages of all stored samples; a finished iteration is not normalised again.

    Raises:
        ContractViolation: the hook raised, or did not give one finite number a sample.
    """
    if record := run.finished("reward_normalization", rollouts.iteration):
        return RolloutsRef.from_dict(record)
    scenario, table = run.scenario, read_table(run.store, rollouts.table)
    hook = load_hook(scenario.normalization.reward_post_process, "reward_post_process", tuple(settings().hook_packages))
    args = ScenarioArgs(scenario, scenario.model.uri)
    table = with_column(table, "advantage", normalised_advantages(table, hook.function, hook.path, args))
    key = run.key("iterations", rollouts.iteration, "normalised-{digest}.parquet")
    published = write_table(run.store, key, table)
    with LedgerWriter(run.run_id, "reward_normalization", rollouts.iteration, run.spool) as ledger:
        ledger.write_all("normalised", ledger_rows(table))
        segment = ledger.seal(run.store)
    create_table_artifact(
        table=group_rows(table),
        key=f"normalisation-{run.run_id.lower()}-{rollouts.iteration:04d}",
        description=f"Rewards and advantages by prompt group, iteration {rollouts.iteration}.",
    )
    normalised = replace(rollouts, table=published, ledger=(*rollouts.ledger, segment))
    run.finish("reward_normalization", rollouts.iteration, normalised.to_dict())
    return normalised
