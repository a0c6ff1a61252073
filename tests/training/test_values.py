"""A critic's values as a hook keeps them, and what is refused of them before anything is trained."""

import json

import pytest
import torch

from infra.errors import ContractViolation
from infra.records.rollouts import read_table, rollouts_table
from tasks.counter_assertion.evidence import StoredSample
from tasks.counter_assertion.oracle.token_advantages import token_advantages
from tasks.training.cost import ModelShape
from tasks.training.loss.advantages import token_advantages as of_trainer
from tasks.training.plan import make_plan
from tasks.training.values import refuse_missing_values, values_of
from tests.infra.megatron.samples import FAN_OUTS, make_run, write_rollouts

SHAPE = ModelShape(layers=4, hidden=32, heads=4, key_value_heads=2, head_dim=8, mlp=64, vocabulary=127)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([0.5, -1, 2.0], [0.5, -1, 2.0]),
        ([0.5, -1], None),
        ([0.5, -1, 2.0, 0.0], None),
        ([0.5, None, 2.0], None),
        ([0.5, "1", 2.0], None),
        ([0.5, float("inf"), 2.0], None),
        (0.5, None),
        (None, None),
    ],
)
def test_values_are_one_finite_number_a_response_token(kept: object, expected: list[float] | None):
    assert values_of(json.dumps({"values": kept}), 3) == expected
    assert values_of("{}", 3) is None


def rows(tmp_path):
    run = make_run(tmp_path, estimator="gae")
    table = read_table(run.store, write_rollouts(run).table).to_pylist()
    for row in table:
        row["metadata"] = json.dumps({"values": [0.1 * t for t in range(row["response_length"])]})
    return run, table


def test_rollouts_without_values_are_refused_by_id(tmp_path):
    run, table = rows(tmp_path)
    plan = make_plan(rollouts_table(table), run.scenario, SHAPE, 0)
    refuse_missing_values(plan, rollouts_table(table))
    last = next(k for k, row in enumerate(table) if row["rollout_id"] == 2 and row["sibling"] == FAN_OUTS[2] - 1)
    table[last]["metadata"] = json.dumps({"values": [0.0]}) if table[last]["response_length"] != 1 else "{}"
    with pytest.raises(ContractViolation, match=r"Rollouts 2 have no value for every response token") as refused:
        refuse_missing_values(plan, rollouts_table(table))
    assert refused.value.ids == (2,)
    table[last]["loss_mask"] = [0] * table[last]["response_length"]
    refuse_missing_values(plan, rollouts_table(table))


@pytest.mark.parametrize("training", [{}, {"gamma": 0.9, "gae_lambda": 0.8}, {"gae_lambda": 0.0}])
def test_trainer_and_oracle_come_to_the_same_advantages(tmp_path, training):
    run, table = rows(tmp_path)
    settings = run.scenario.training.model_copy(update=training)
    samples = [StoredSample(**row) for row in table]
    rewards = {s.key: 0.25 * (s.rollout_id % 3) for s in samples}
    expected = token_advantages(samples, rewards, settings)
    for s in samples:
        got = of_trainer(
            torch.tensor([rewards[s.key]], dtype=torch.float64),
            torch.zeros(s.response_length, dtype=torch.long),
            torch.tensor(s.loss_mask),
            settings,
            values=torch.tensor(values_of(s.metadata, s.response_length), dtype=torch.float64),
        )
        trained = [value for value, m in zip(got.tolist(), s.loss_mask, strict=True) if m]
        assert trained == pytest.approx(expected[s.key])
        assert not any(value for value, m in zip(got.tolist(), s.loss_mask, strict=True) if not m)
