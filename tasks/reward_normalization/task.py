"""Reward normalisation as a Prefect task: add the `advantage` column to the stored rollouts of an iteration."""

from dataclasses import replace

import pyarrow as pa
from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from infra.hook_loading import load_hook
from infra.ledger import LedgerWriter
from infra.records.rollouts import RolloutsRef, read_table, with_column, write_table
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.settings import settings
from infra.store import ObjectRef
from tasks.reward_normalization.carry import Carried, carried_into
from tasks.reward_normalization.normalize import normalised_advantages
from tasks.reward_normalization.table import group_rows, ledger_rows


def published(run: Run, rollouts: RolloutsRef, table: pa.Table, carried: Carried | None) -> RolloutsRef:
    """The normalised table in the store, with what was carried over in front, and the log-probs that belong to it."""

    def publish(name: str, table: pa.Table) -> ObjectRef:
        return write_table(run.store, run.key("iterations", rollouts.iteration, f"{name}-{{digest}}.parquet"), table)

    if carried is None:
        return replace(rollouts, table=publish("normalised", table))
    log_probs = pa.concat_tables([carried.log_probs, read_table(run.store, rollouts.log_probs)])
    return replace(
        rollouts,
        table=publish("normalised", pa.concat_tables([carried.table, table])),
        log_probs=publish("engine-log-probs-with-carried", log_probs),
        samples=rollouts.samples + carried.table.num_rows,
        rollouts=rollouts.rollouts + len(carried.rollout_ids),
    )


@task(task_run_name="normalise rewards, iteration {rollouts.iteration}", cache_policy=NO_CACHE, persist_result=False)
def normalize_rewards(run: Run, rollouts: RolloutsRef) -> RolloutsRef:
    """Group-relative advantages of all samples of an iteration, behind those carried over from the one before.

    A finished iteration is not normalised again.

    Raises:
        ContractViolation: the hook raised, or did not give one finite number a sample.
    """
    if record := run.finished("reward_normalization", rollouts.iteration):
        return RolloutsRef.from_dict(record)
    scenario, table = run.scenario, read_table(run.store, rollouts.table)
    hook = load_hook(scenario.normalization.reward_post_process, "reward_post_process", tuple(settings().hook_packages))
    args = ScenarioArgs(scenario, scenario.model.uri)
    table = with_column(table, "advantage", normalised_advantages(table, hook.function, hook.path, args))
    carried = carried_into(run, rollouts.iteration)
    with LedgerWriter(run.run_id, "reward_normalization", rollouts.iteration, run.spool) as ledger:
        ledger.write_all("normalised", ledger_rows(table))
        if carried:
            ledger.write_all("carried", [{"rollout_id": rollout} for rollout in carried.rollout_ids])
        segment = ledger.seal(run.store)
    create_table_artifact(
        table=group_rows(table),
        key=f"normalisation-{run.run_id.lower()}-{rollouts.iteration:04d}",
        description=f"Rewards and advantages by prompt group, iteration {rollouts.iteration}.",
    )
    normalised = replace(published(run, rollouts, table, carried), ledger=(*rollouts.ledger, segment))
    run.finish("reward_normalization", rollouts.iteration, normalised.to_dict())
    return normalised
