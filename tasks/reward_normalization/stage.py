"""The reward normalisation of one iteration: the stored rollouts again, with the `advantage` column filled."""

from dataclasses import replace

from infra.hook_loading import load_hook
from infra.ledger import LedgerWriter
from infra.records.rollouts import RolloutsRef, read_table, with_column, write_table
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from tasks.reward_normalization.normalize import normalised_advantages
from tasks.reward_normalization.table import ledger_rows


def normalise(run: Run, rollouts: RolloutsRef, hook_packages: tuple[str, ...]) -> RolloutsRef:
    """Group-relative advantages of all stored samples, published with the ledger's lines about them.

    Raises:
        ContractViolation: the hook raised, or did not give one finite number a sample.
    """
    scenario, table = run.scenario, read_table(run.store, rollouts.table)
    hook = load_hook(scenario.normalization.reward_post_process, "reward_post_process", hook_packages)
    args = ScenarioArgs(scenario, scenario.model.uri)
    table = with_column(table, "advantage", normalised_advantages(table, hook.function, hook.path, args))
    key = run.key("iterations", rollouts.iteration, "normalised-{digest}.parquet")
    published = write_table(run.store, key, table)
    with LedgerWriter(run.run_id, "reward_normalization", rollouts.iteration, run.spool) as ledger:
        ledger.write_all("normalised", ledger_rows(table))
        segment = ledger.seal(run.store)
    return replace(rollouts, table=published, ledger=(*rollouts.ledger, segment))
