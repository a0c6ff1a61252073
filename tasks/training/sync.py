"""Weight sync and its proof: the engine's log-probs of stored sequences are the trainer's, after the weights moved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from infra.records.rollouts import RolloutsRef, read_table, sync_log_probs_table, write_table
from infra.records.training import SyncResult, TrainedIteration
from infra.run import Run

if TYPE_CHECKING:
    from infra.megatron.trainer import MegatronTrainer
    from infra.sglang.serving import ServingEngine

SEQUENCES = 16
ENGINE_INPUT_TEMPERATURE = 1.0  # SGLang does not divide the log-probs of input tokens by the temperature


def rows_to_compare(lengths: np.ndarray, trained: np.ndarray, most: int = SEQUENCES) -> list[int]:
    """Row numbers spread evenly over the samples that were trained and have a response, at most `most` of them.

    Args:
        lengths: [samples] response tokens.
        trained: [samples] whether some step took the sample: there are no log-probs from before training of others.
    """
    usable = np.flatnonzero((lengths > 0) & trained)
    return usable[np.unique(np.linspace(0, len(usable) - 1, min(most, len(usable)), dtype=int))].tolist()


def push_and_compare(
    run: Run, rollouts: RolloutsRef, trained: TrainedIteration, trainer: MegatronTrainer, engine: ServingEngine
) -> SyncResult:
    """Push, then compare both sides' log-probs of stored sequences at temperature 1, in nats."""
    table = read_table(run.store, rollouts.table)
    before_training = _log_probs_before_training(run, trained)
    keys = list(zip(table["rollout_id"].to_pylist(), table["sibling"].to_pylist(), strict=True))
    rows = rows_to_compare(table["response_length"].to_numpy(), np.array([key in before_training for key in keys]))
    sequences = [(table["tokens"][r].as_py(), table["response_length"][r].as_py()) for r in rows]
    # Before the push: on a GPU that both share it is the trainer's turn, and its passes have room.
    ours = trainer.log_probs(rollouts.table, rows, ENGINE_INPUT_TEMPERATURE)
    after = trainer.log_probs(rollouts.table, rows, run.scenario.rollout.temperature)
    engine.settle()
    pushed = trainer.push_weights(engine.receivers, trained.weight_version)
    before = [before_training[keys[r]] for r in rows]
    version, theirs = asyncio.run(_engine_view(engine, sequences))
    compared = [
        {"rollout_id": rollout, "sibling": sibling, "engine": e, "trainer": t, "before": b, "after": a}
        for (rollout, sibling), e, t, b, a in zip([keys[r] for r in rows], theirs, ours, before, after, strict=True)
    ]
    key = run.key("iterations", rollouts.iteration, "sync-log-probs-{digest}.parquet")
    return SyncResult(
        iteration=rollouts.iteration,
        weight_version=trained.weight_version,
        engine_version=version,
        weights_digest=pushed.digest,
        tensors=pushed.tensors,
        bytes=pushed.bytes,
        seconds=pushed.seconds,
        sequences_compared=len(rows),
        max_log_prob_error=_largest_difference(ours, theirs),
        moved_log_probs=_largest_difference(after, before),
        hand_overs=trainer.turns.made() if trainer.turns is not None else (),
        log_probs=write_table(run.store, key, sync_log_probs_table(compared)),
    )


def _log_probs_before_training(run: Run, trained: TrainedIteration) -> dict[tuple[int, int], list[float]]:
    rows = read_table(run.store, trained.log_probs).to_pylist()
    return {(r["rollout_id"], r["sibling"]): r["log_probs"] for r in rows}


async def _engine_view(engine: ServingEngine, sequences: list[tuple[list[int], int]]) -> tuple[str, list[list[float]]]:
    async with engine.client() as client:
        return await client.weight_version(), await client.prefill_log_probs(sequences)


def _largest_difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    return max((float(np.abs(np.subtract(a, b)).max()) for a, b in zip(ours, theirs, strict=True)), default=0.0)
