import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records.rollouts import RolloutsRef, read_table
from infra.records.training import TrainedIteration
from infra.run import Run
from tasks.training.sync import SEQUENCES, push_and_compare, rows_to_compare
from tests.counter_assertion.plain_loop import PlainLoop, scenario, tiny_qwen2


def test_only_trained_samples_with_a_response_are_compared():
    """What no step took has no log-probs from before training to compare with."""
    assert rows_to_compare(np.array([3, 0, 2, 4]), np.array([True, True, False, True])) == [0, 3]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
@settings(max_examples=60, deadline=None)
def test_rows_are_spread_over_all_that_can_be_compared(samples):
    lengths, trained = (np.array([s[k] for s in samples], dtype) for k, dtype in ((0, int), (1, bool)))
    rows = rows_to_compare(lengths, trained)
    usable = np.flatnonzero((lengths > 0) & trained).tolist()
    assert rows == sorted(set(rows)) and set(rows) <= set(usable)
    assert len(rows) == min(len(usable), SEQUENCES)
    assert not usable or {usable[0], usable[-1]} <= {*rows, usable[-1] if len(rows) == 1 else usable[0]}


class Trainer:
    """Log-probs that say which temperature they are of."""

    turns = None

    def __init__(self, lengths: list[int]):
        self.lengths = lengths

    def log_probs(self, table: Any, rows: list[int], temperature: float) -> list[list[float]]:
        return [[-temperature] * self.lengths[r] for r in rows]

    def push_weights(self, receivers: Any, version: str) -> Any:
        return SimpleNamespace(digest="d", tensors=1, bytes=1, seconds=0.0)


class Engine:
    receivers = ()

    def settle(self) -> None:
        pass

    def client(self):
        return contextlib.nullcontext(self)

    async def weight_version(self) -> str:
        return "v1"

    async def prefill_log_probs(self, sequences: list[tuple[list[int], int]]) -> list[list[float]]:
        return [[-1.25] * length for _, length in sequences]


def test_both_sides_log_probs_are_stored_and_the_figures_are_of_them(tmp_path):
    run = Run(
        run_id="run-1",
        scenario=scenario(rollout={"iterations": 1}),
        store_uri=str(tmp_path / "store"),
        spool=tmp_path / "spool",
    )
    PlainLoop(run, tiny_qwen2(tmp_path / "model")).go()
    made = {stage: run.finished(stage, 0) for stage in ("reward_normalization", "training")}
    rollouts = RolloutsRef.from_dict(made["reward_normalization"] or {})
    trained = TrainedIteration.from_dict(made["training"] or {})
    lengths = read_table(run.store, rollouts.table)["response_length"].to_pylist()
    trainer: Any = Trainer(lengths)
    engine: Any = Engine()
    result = push_and_compare(run, rollouts, trained, trainer, engine)
    assert result.log_probs is not None
    rows = read_table(run.store, result.log_probs).to_pylist()
    assert len(rows) == result.sequences_compared == SEQUENCES
    assert {p for row in rows for p in row["engine"]} == {-1.25}
    assert {p for row in rows for p in row["trainer"]} == {-1.0}
    assert {p for row in rows for p in row["after"]} == {-run.scenario.rollout.temperature}
    moved = max(abs(a - b) for row in rows for a, b in zip(row["after"], row["before"], strict=True))
    assert (result.max_log_prob_error, result.moved_log_probs) == (0.25, pytest.approx(moved))
