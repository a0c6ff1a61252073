"""A loss that is weighed by the engine's log-probs is not computed without them."""

import pytest

from infra.errors import ContractViolation
from infra.records.plan import TrainingPlan
from infra.records.rollouts import log_probs_table, read_table
from tasks.training.engine_log_probs import refuse_missing_log_probs
from tests.infra.megatron.samples import make_run, write_plan, write_rollouts


@pytest.fixture
def stored(tmp_path):
    run = make_run(tmp_path)
    table = read_table(run.store, write_rollouts(run).table)
    plan = TrainingPlan.from_dict(run.store.read_json(write_plan(run, table.to_pylist())))
    rows = [
        {"rollout_id": r["rollout_id"], "sibling": r["sibling"], "log_probs": [-1.0] * r["response_length"]}
        for r in table.to_pylist()
    ]
    return plan, table, rows


def test_complete_log_probs_are_fine(stored):
    plan, table, rows = stored
    refuse_missing_log_probs(plan, table, log_probs_table(rows))


def test_missing_and_short_log_probs_are_refused_by_rollout(stored):
    plan, table, rows = stored
    kept = [r for r in rows if r["rollout_id"] != 5]
    kept[0]["log_probs"] = kept[0]["log_probs"][1:]
    with pytest.raises(ContractViolation, match="rollouts 0, 5 are not on record") as refused:
        refuse_missing_log_probs(plan, table, log_probs_table(kept))
    assert refused.value.ids == (0, 5)
