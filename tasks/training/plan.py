"""Plan an iteration: which sample is in which step, rank and micro-batch, and with which weight it enters the loss."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from infra.records.plan import LeftOut, MicroBatch, PlannedSample, Step, TrainingPlan
from infra.scenario.model import Scenario
from infra.scenario.training import Training
from tasks.training.cost import ModelShape
from tasks.training.schedule import Schedule, schedule_step
from tasks.training.steps import split_steps
from tasks.training.weights import sample_weights

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """What the plan needs of the rollouts table, [samples] each. `trained` is the sum of the mask, 0 if removed."""

    index: Integers
    rollout: Integers
    sibling: Integers
    group: Integers
    tokens: Integers
    trained: Integers
    removed: NDArray[np.bool_]
    aborted: NDArray[np.bool_]
    cost: NDArray[np.float64]


def make_plan(table: pa.Table, scenario: Scenario, shape: ModelShape, iteration: int) -> TrainingPlan:
    """The steps of an iteration from its stored rollouts; equal tables give equal plans.

    Rollouts with an aborted sibling are dropped as a whole. Removed samples and fully masked rollouts are not run: such
    a rollout keeps its place in the step and leaves the mean. What is not trained is in `left_out` with its reason.

    Args:
        table: [samples] of the rollouts schema; rollouts carried over come first, as their index is the smallest.
        shape: the model's sizes, for the cost of a sample.
    Raises:
        NoFullStep: fewer rollouts than one step takes.
    """
    training, columns = scenario.training, _read(table, shape)
    aborted = np.isin(columns.rollout, columns.rollout[columns.aborted])
    usable = np.flatnonzero(~aborted)
    split = split_steps(columns.index[usable].tolist(), columns.rollout[usable].tolist(), training.global_batch_size)
    left_out = [LeftOut(rollout_id=k, reason="aborted") for k in np.unique(columns.rollout[aborted]).tolist()]
    steps = []
    for number, (positions, rollout_ids) in enumerate(zip(split.steps, split.rollout_ids, strict=True)):
        rows = usable[positions]
        left_out += _leaving_the_mean(columns, rows)
        steps.append(_plan_step(columns, rows, rollout_ids, training, number))
    left_out += [LeftOut(rollout_id=k, reason=_why_left_over(scenario, iteration)) for k in split.left_over]
    return TrainingPlan(
        iteration=iteration,
        global_batch_size=training.global_batch_size,
        data_parallel=training.data_parallel,
        token_cap=_token_cap(training),
        loss_mean=training.loss_mean,
        steps=tuple(steps),
        left_out=tuple(left_out),
    )


def _why_left_over(scenario: Scenario, iteration: int) -> str:
    """`carried` where a next iteration takes what is left over after the last full step, else `trailing`."""
    last = iteration == scenario.rollout.iterations - 1
    return "carried" if scenario.training.trailing == "carry" and not last else "trailing"


def _read(table: pa.Table, shape: ModelShape) -> _Columns:
    def integers(name: str) -> Integers:
        return table[name].to_numpy().astype(np.int64)

    tokens = pc.list_value_length(table["tokens"]).to_numpy().astype(np.int64)  # type: ignore[attr-defined]
    masks = table["loss_mask"].combine_chunks()
    parent, values = pc.list_parent_indices(masks).to_numpy(), pc.list_flatten(masks).to_numpy()  # type: ignore[attr-defined]
    trained = np.bincount(parent, values, minlength=table.num_rows).astype(np.int64)
    removed = table["remove_sample"].to_numpy().astype(bool)
    return _Columns(
        index=integers("index"),
        rollout=integers("rollout_id"),
        sibling=integers("sibling"),
        group=integers("group_index"),
        tokens=tokens,
        trained=np.where(removed, 0, trained),
        removed=removed,
        aborted=pc.equal(table["status"], "aborted").to_numpy().astype(bool),  # type: ignore[attr-defined]
        cost=shape.forward_flops(tokens),
    )


def _token_cap(training: Training) -> int | None:
    cap = training.max_tokens_per_gpu
    return None if cap is None else cap * training.context_parallel


def _has_trained_tokens(columns: _Columns, rows: Integers) -> NDArray[np.bool_]:
    """[rows] whether any sibling of the row's rollout has a trained token."""
    return np.isin(columns.rollout[rows], columns.rollout[rows[columns.trained[rows] > 0]])


def _leaving_the_mean(columns: _Columns, rows: Integers) -> Iterable[LeftOut]:
    """The step's rollouts without a trained token."""
    masked = columns.rollout[rows[~columns.removed[rows]]]
    for rollout in np.unique(columns.rollout[rows[~_has_trained_tokens(columns, rows)]]).tolist():
        yield LeftOut(rollout_id=rollout, reason="fully masked" if rollout in masked else "removed")


def _plan_step(
    columns: _Columns, rows: Integers, rollout_ids: tuple[int, ...], training: Training, number: int
) -> Step:
    weights, in_mean = sample_weights(
        training.loss_mean,
        columns.trained[rows],
        columns.rollout[rows],
        columns.group[rows],
        constant=training.constant_denominator,
    )
    run = _has_trained_tokens(columns, rows) & ~columns.removed[rows]
    if not run.any():  # every rank still takes part in the step, with dummies only
        rows, weights = rows[:1], np.zeros(1)
    else:
        rows, weights = rows[run], weights[run]
    schedule = schedule_step(
        columns.tokens[rows],
        columns.cost[rows],
        ranks=training.data_parallel,
        token_cap=_token_cap(training),
        micro_batch_size=training.micro_batch_size,
        group=training.microbatch_multiple,
    )
    samples = _planned(columns, rows, weights, dummies_only=not run.any())
    return Step(
        index=number,
        rollout_ids=rollout_ids,
        rollouts_in_mean=in_mean,
        ranks=_micro_batches(columns, rows, samples, schedule),
        figures={**schedule.figures.to_dict(), **_split_rollouts(columns.rollout[rows], schedule)},
    )


def _planned(
    columns: _Columns, rows: Integers, weights: NDArray[np.float64], dummies_only: bool
) -> list[PlannedSample]:
    """The rows of a step; the sibling of lowest number opens its rollout."""
    order = np.lexsort((columns.sibling[rows], columns.rollout[rows]))
    _, first = np.unique(columns.rollout[rows][order], return_index=True)
    opening = set() if dummies_only else set(order[first].tolist())
    return [
        PlannedSample(
            row=int(row),
            rollout_id=int(columns.rollout[row]),
            sibling=int(columns.sibling[row]),
            weight=float(weight),
            opens_rollout=k in opening,
            dummy=dummies_only,
        )
        for k, (row, weight) in enumerate(zip(rows, weights, strict=True))
    ]


def _micro_batches(
    columns: _Columns, rows: Integers, samples: list[PlannedSample], schedule: Schedule
) -> tuple[tuple[MicroBatch, ...], ...]:
    ranks = [[[(samples[k], rows[k]) for k in batch] for batch in rank] for rank in schedule.batches()]
    for rank, batch, repeated in schedule.dummies:
        s = samples[repeated]
        dummy = PlannedSample(row=s.row, rollout_id=s.rollout_id, sibling=s.sibling, weight=0.0, dummy=True)
        ranks[rank][batch].append((dummy, rows[repeated]))
    return tuple(tuple(_micro_batch(columns, batch) for batch in rank) for rank in ranks)


def _micro_batch(columns: _Columns, batch: list[tuple[PlannedSample, np.int64]]) -> MicroBatch:
    rows = [row for _, row in batch]
    return MicroBatch(
        samples=tuple(sample for sample, _ in batch),
        tokens=int(columns.tokens[rows].sum()),
        cost=float(columns.cost[rows].sum()),
    )


def _split_rollouts(rollout: Integers, schedule: Schedule) -> dict[str, float]:
    """How many rollouts of the step are split over micro-batches, and over ranks."""
    slot = schedule.rank * schedule.figures.micro_batches_per_rank + schedule.micro_batch
    return {
        "rollouts_split_over_micro_batches": _keys_with_several(rollout, slot),
        "rollouts_split_over_ranks": _keys_with_several(rollout, schedule.rank),
    }


def _keys_with_several(key: Integers, value: Integers) -> int:
    pairs = np.unique(np.stack([key, value], 1), axis=0)
    return int((np.unique(pairs[:, 0], return_counts=True)[1] > 1).sum())
