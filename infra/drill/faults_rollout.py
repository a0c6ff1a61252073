"""Replacements in the rollout stage. Each is `original -> faulty`; its docstring says what goes wrong."""

from typing import Any

import pyarrow as pa

from hooks.sample import Status
from infra.hook_loading import load_hook


def stock_instead_of_hook(original: Any) -> Any:
    """The custom generate function is not looked at: the stock one runs."""

    def faulty(self: Any, slot: Any) -> Any:
        return load_hook("hooks.stock.generate", "generate")

    return faulty


def first_slot_twice(original: Any) -> Any:
    """A prompt goes through the hook a second time, and the second result is kept."""

    async def faulty(slot: Any, stage: Any) -> Any:
        made = await original(slot, stage)
        return await original(slot, stage) if slot.index == 0 else made

    return faulty


def last_sibling_lost(original: Any) -> Any:
    """One sibling of one rollout does not reach the table, after all were graded."""

    def faulty(*args: Any, **kwargs: Any) -> Any:
        rows = original(*args, **kwargs)
        lost = next(row for row in rows if row["sibling"] > 0)
        return [row for row in rows if row is not lost]

    return faulty


def an_id_for_each_sibling(original: Any) -> Any:
    """Siblings get ids of their own after the contract was checked."""

    def faulty(rollouts: Any, *args: Any, **kwargs: Any) -> None:
        original(rollouts, *args, **kwargs)
        number = 0
        for rollout in rollouts:
            for sample in rollout.siblings:
                sample.rollout_id, number = number, number + 1

    return faulty


def one_id_for_two_prompts(original: Any) -> Any:
    """The first rollouts of two prompt groups get the same id after the contract was checked."""

    def faulty(rollouts: Any, *args: Any, **kwargs: Any) -> None:
        original(rollouts, *args, **kwargs)
        first = rollouts[0]
        other = next(r for r in rollouts if r.slot.group_index != first.slot.group_index)
        for sample in other.siblings:
            sample.rollout_id = first.rollout_id

    return faulty


def labels_of_the_next_prompt(original: Any) -> Any:
    """Every prompt is drawn with the label of the prompt after it."""

    return lambda scenario, table, iteration: original(scenario, _of_the_next_row(table, "label"), iteration)


def texts_of_the_next_prompt(original: Any) -> Any:
    """Every prompt is drawn with the text of the prompt after it, under its own id and label."""
    return lambda scenario, table, iteration: original(scenario, _of_the_next_row(table, "prompt"), iteration)


def _of_the_next_row(table: Any, column: str) -> Any:
    values = table[column].to_pylist()
    moved = pa.array(values[1:] + values[:1], table[column].type)
    return table.set_column(table.schema.get_field_index(column), column, moved)


def cursor_stands_still(original: Any) -> Any:
    """Every iteration takes the rows of the first, under group numbers of its own."""

    def faulty(rows: int, prompts: int, iteration: int) -> Any:
        groups = [group for group, _, _ in original(rows, prompts, iteration)]
        return [(group, row, epoch) for group, (_, row, epoch) in zip(groups, original(rows, prompts, 0), strict=True)]

    return faulty


def grader_always_zero(original: Any) -> Any:
    """The grader answers 0 whatever it is shown."""

    async def exact_match(args: Any, sample: Any) -> float:
        return 0.0

    exact_match.__module__ = "hooks.rewards"
    return exact_match


def grader_raises_now_and_then(original: Any) -> Any:
    """The grader raises for every third rollout."""

    async def exact_match(args: Any, sample: Any) -> Any:
        if sample.index % 3 == 0:
            raise RuntimeError("the grader's thread died")
        return await original(args, sample)

    exact_match.__module__ = "hooks.rewards"
    return exact_match


def failed_grades_are_zero(original: Any) -> Any:
    """What the grader raises is swallowed, and the reward is 0."""

    async def faulty(hook: Any, rollouts: Any, args: Any, what: Any) -> Any:
        try:
            return await original(hook, rollouts, args, what)
        except Exception:  # the fault itself
            return 0.0

    return faulty


def aborted_is_no_reason(original: Any) -> Any:
    """A rollout with an aborted sibling is used all the same."""
    return lambda siblings: None


def aborted_looks_completed(original: Any) -> Any:
    """The table says of aborted samples that they were completed."""

    def faulty(*args: Any, **kwargs: Any) -> Any:
        rows = original(*args, **kwargs)
        return [{**r, "status": Status.COMPLETED.value} if r["status"] == Status.ABORTED.value else r for r in rows]

    return faulty


def ledger_of_an_earlier_run(original: Any) -> Any:
    """The ledger that is counted was written by another run."""

    def faulty(run_id: str, *args: Any, **kwargs: Any) -> Any:
        return original(f"{run_id}-yesterday", *args, **kwargs)

    return faulty
