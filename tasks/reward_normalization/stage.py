"""The reward normalisation of one iteration: the stored rollouts again, with the `advantage` column filled."""

from dataclasses import replace

import pyarrow as pa

from infra.hook_loading import load_hook
from infra.ledger import LedgerWriter
from infra.records.rollouts import RolloutsRef, read_table, with_column, write_table
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.store import ObjectRef
from tasks.reward_normalization.carry import Carried, carried_into
from tasks.reward_normalization.normalize import normalised_advantages
from tasks.reward_normalization.table import ledger_rows


def normalise(run: Run, rollouts: RolloutsRef, hook_packages: tuple[str, ...]) -> RolloutsRef:
    """Group-relative advantages of all stored samples, published behind the samples that were carried over.

    Raises:
        ContractViolation: the hook raised, or did not give one finite number a sample.
    """
    scenario, table = run.scenario, read_table(run.store, rollouts.table)
    hook = load_hook(scenario.normalization.reward_post_process, "reward_post_process", hook_packages)
    args = ScenarioArgs(scenario, scenario.model.uri)
    table = with_column(table, "advantage", normalised_advantages(table, hook.function, hook.path, args))
    carried = carried_into(run, rollouts.iteration)
    with LedgerWriter(run.run_id, "reward_normalization", rollouts.iteration, run.spool) as ledger:
        ledger.write_all("normalised", ledger_rows(table))
        if carried:
            ledger.write_all("carried", [{"rollout_id": rollout} for rollout in carried.rollout_ids])
        segment = ledger.seal(run.store)
    return replace(published(run, rollouts, table, carried), ledger=(*rollouts.ledger, segment))


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
