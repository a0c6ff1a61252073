"""What an iteration takes over from the one before, from the records of that one."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from infra.ledger import read_segment
from infra.records.plan import TrainingPlan
from infra.records.rollouts import RolloutsRef, log_probs_table, read_table, rollouts_table, write_table
from infra.records.training import TrainedIteration
from infra.run import Run
from infra.scenario.load import load
from tasks.reward_normalization.carry import carried_into
from tasks.reward_normalization.stage import normalise, published
from tasks.training.cost import ModelShape
from tasks.training.plan import make_plan
from tests.reward_normalization.rows import row

SHAPE = ModelShape(layers=2, hidden=64, heads=4, key_value_heads=2, head_dim=16, mlp=128, vocabulary=512)
Store = Callable[..., RolloutsRef]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    scenario = load("tiny", ["training.trailing=carry", "training.global_batch_size=4", "rollout.iterations=3"])
    return Run(run_id="carry-1", scenario=scenario, store_uri=str(tmp_path / "store"), spool=tmp_path / "spool")


def rows(first: int, rollouts: int, iteration: int) -> list[dict]:
    ids = range(first, first + rollouts)
    changed = {"iteration": iteration, "advantage": 0.5, "weight_version": str(iteration)}
    return [row(r, r // 4, s, **changed) for r in ids for s in range(1 + r % 3)]


def stored(run: Run, iteration: int, made: list[dict]) -> RolloutsRef:
    log_probs = [{k: r[k] for k in ("rollout_id", "sibling")} | {"log_probs": [-1.0] * 3} for r in made]
    where = run.key("iterations", iteration)
    return RolloutsRef(
        iteration=iteration,
        table=write_table(run.store, f"{where}/rollouts.parquet", rollouts_table(made)),
        log_probs=write_table(run.store, f"{where}/log-probs.parquet", log_probs_table(log_probs)),
        ledger=(),
        samples=len(made),
        rollouts=len({r["rollout_id"] for r in made}),
        generated_tokens=0,
        weight_version=str(iteration),
    )


def train(run: Run, normalised: RolloutsRef) -> TrainingPlan:
    i = normalised.iteration
    plan = make_plan(read_table(run.store, normalised.table), run.scenario, SHAPE, i)
    ref = run.store.publish_json(run.key("iterations", i, "plan.json"), plan.to_dict())
    run.finish("reward_normalization", i, normalised.to_dict())
    fields = {"weights_digest": "0", "weight_version": str(i + 1), "ledger": (), "steps": ()}
    trained = TrainedIteration(iteration=i, plan=ref, log_probs=normalised.log_probs, state=ref, **fields)
    run.finish("training", i, trained.to_dict())
    return plan


def normalised(run: Run, ref: RolloutsRef) -> RolloutsRef:
    return published(run, ref, read_table(run.store, ref.table), carried_into(run, ref.iteration))


def keys(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["rollout_id"].to_pylist(), table["sibling"].to_pylist(), strict=True))


def test_left_over_rollouts_come_first_in_the_next_iteration_with_all_their_siblings(run: Run):
    first = rows(0, 6, 0)
    assert train(run, normalised(run, stored(run, 0, first))).steps[0].rollout_ids == (0, 1, 2, 3)
    carried = carried_into(run, 1)
    assert carried and carried.rollout_ids == (4, 5)
    assert carried.table.to_pylist() == [r for r in first if r["rollout_id"] >= 4]
    ref = normalised(run, stored(run, 1, rows(6, 5, 1)))
    plan = train(run, ref)
    assert [s.rollout_ids for s in plan.steps] == [(4, 5, 6, 7)] and len(plan.left_out) == 3
    table, log_probs = read_table(run.store, ref.table), read_table(run.store, ref.log_probs)
    assert keys(table) == keys(log_probs) == [(r["rollout_id"], r["sibling"]) for r in (*rows(4, 2, 0), *rows(6, 5, 1))]
    assert (ref.samples, ref.rollouts) == (table.num_rows, 7)
    again = carried_into(run, 2)
    assert again and again.rollout_ids == (8, 9, 10)


def test_the_stage_itself_puts_them_in_front_and_says_so(run: Run):
    train(run, normalised(run, stored(run, 0, rows(0, 6, 0))))
    ref = normalise(run, stored(run, 1, rows(6, 5, 1)), ("hooks",))
    ids = read_table(run.store, ref.table)["rollout_id"].to_pylist()
    assert list(dict.fromkeys(ids)) == list(range(4, 11))
    events = read_segment(run.store, run.run_id, ref.ledger[0])
    assert [(e["event"], e["rollout_id"]) for e in events] == [
        *(("normalised", r) for r in range(6, 11)),
        ("carried", 4),
        ("carried", 5),
    ]


def test_nothing_is_carried_into_the_first_iteration_or_where_nothing_is_left_over(run: Run):
    assert carried_into(run, 0) is None
    train(run, normalised(run, stored(run, 0, rows(0, 8, 0))))
    assert carried_into(run, 1) is None
    ref = stored(run, 1, rows(8, 4, 1))
    assert normalised(run, ref).log_probs == ref.log_probs


def test_a_scenario_that_drops_carries_nothing(run: Run, tmp_path: Path):
    drops = Run(run_id="drop-1", scenario=load("tiny"), store_uri=run.store_uri, spool=run.spool)
    assert carried_into(drops, 1) is None
