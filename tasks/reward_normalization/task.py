"""Reward normalisation as a Prefect task: add the `advantage` column to the stored rollouts of an iteration."""

import pyarrow.compute as pc
from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from infra.records.rollouts import RolloutsRef, read_table
from infra.run import Run
from infra.settings import settings
from tasks.reward_normalization.stage import normalise
from tasks.reward_normalization.table import group_rows


@task(task_run_name="normalise rewards, iteration {rollouts.iteration}", cache_policy=NO_CACHE, persist_result=False)
def normalize_rewards(run: Run, rollouts: RolloutsRef) -> RolloutsRef:
    """Group-relative advantages of all stored samples; a finished iteration is not normalised again.

    Raises:
        ContractViolation: the hook raised, or did not give one finite number a sample.
    """
    if record := run.finished("reward_normalization", rollouts.iteration):
        return RolloutsRef.from_dict(record)
    normalised = normalise(run, rollouts, tuple(settings().hook_packages))
    table = read_table(run.store, normalised.table)
    create_table_artifact(
        # Rollouts that were carried over are in the table of their own iteration, where their groups are whole.
        table=group_rows(table.filter(pc.equal(table["iteration"], rollouts.iteration))),  # type: ignore[attr-defined]
        key=f"normalisation-{run.run_id.lower()}-{rollouts.iteration:04d}",
        description=f"Rewards and advantages by prompt group, iteration {rollouts.iteration}.",
    )
    run.finish("reward_normalization", rollouts.iteration, normalised.to_dict())
    return normalised
