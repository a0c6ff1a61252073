"""Which prompts an iteration takes, and the ids that their rollouts get."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from hooks.sample import Sample
from infra.errors import ContractViolation
from infra.scenario.model import Scenario
from tasks.rollout.calls import Call

EVALUATION_IDS = 2**40  # groups and slots of evaluations are numbered from here: no run trains as many rollouts


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One rollout to be made. `index` and `group_index` are unique in the run; `sample` is pristine: copy it.

    A slot that was held back in an earlier iteration is `continued`, with the engine calls `recorded` then.
    """

    iteration: int
    group_index: int
    index: int
    prompt_id: str
    epoch: int
    sample: Sample
    continued: bool = False
    recorded: Mapping[tuple[str, int], Call] = field(default_factory=dict, repr=False)

    @property
    def where(self) -> str:
        """The rollout in words, for messages."""
        return f"prompt group {self.group_index} (prompt id {self.prompt_id!r}), rollout index {self.index}"


def draws(rows: int, prompts: int, iteration: int) -> list[tuple[int, int, int]]:
    """(group_index, row, epoch) of each prompt of an iteration: source order, going on over iterations and epochs.

    Example: 3 rows, 8 prompts -> epochs 0 0 0 1 1 1 2 2
    """
    first = iteration * prompts
    return [(group, group % rows, group // rows) for group in range(first, first + prompts)]


def refuse_too_few_rows(scenario: Scenario, rows: int) -> None:
    """Refuse a data set that the whole run can not be drawn from.

    Raises:
        ContractViolation: no rows, or fewer than the run asks for where another epoch is forbidden; with the figures.
    """
    iterations, prompts = scenario.rollout.iterations, scenario.rollout.prompts
    asked = iterations * prompts
    if rows == 0 or (rows < asked and not scenario.data.allow_more_epochs):
        raise ContractViolation(
            f"{scenario.data.uri} has {rows} prompts, the run asks for {asked} ({iterations} iterations of {prompts})"
            + (" and data.allow_more_epochs is off." if rows else "."),
            next_step="Allow more epochs, give more data, or lower rollout.prompts or rollout.iterations.",
            ids=[rows, asked],
        )


def draw_slots(scenario: Scenario, table: pa.Table, iteration: int) -> list[Slot]:
    """The rollouts of an iteration by index: `rollouts_per_prompt` slots of each drawn prompt.

    Args:
        table: the prompts of the source, schema PROMPTS_SCHEMA.
    """
    refuse_too_few_rows(scenario, table.num_rows)
    times = scenario.rollout.rollouts_per_prompt
    drawn = draws(table.num_rows, scenario.rollout.prompts, iteration)
    rows = table.take([row for _, row, _ in drawn]).to_pylist()
    return [
        _slot(row, iteration=iteration, group_index=group, index=group * times + k, epoch=epoch)
        for (group, _, epoch), row in zip(drawn, rows, strict=True)
        for k in range(times)
    ]


def evaluation_slots(scenario: Scenario, table: pa.Table, iteration: int) -> list[Slot]:
    """The rollouts of the evaluation behind an iteration: the first prompts of its own data, in a namespace of ids.

    Args:
        scenario: as `tasks.rollout.evaluation.evaluated` makes it.
        table: the evaluation's prompts, schema PROMPTS_SCHEMA.

    Example: the first index of iteration 0 is 2**40
    """
    prompts, times = table.num_rows, scenario.rollout.rollouts_per_prompt
    first = EVALUATION_IDS + iteration * prompts
    return [
        _slot(row, iteration=iteration, group_index=group, index=EVALUATION_IDS + offset * times + k, epoch=0)
        for offset, (group, row) in enumerate(
            zip(range(first, first + prompts), table.to_pylist(), strict=True), iteration * prompts
        )
        for k in range(times)
    ]


def _slot(row: Mapping[str, Any], *, iteration: int, group_index: int, index: int, epoch: int) -> Slot:
    sample = Sample(
        group_index=group_index,
        index=index,
        prompt=row["prompt"],
        label=row["label"],
        metadata=json.loads(row["metadata"]),
    )
    return Slot(
        iteration=iteration,
        group_index=group_index,
        index=index,
        prompt_id=row["prompt_id"],
        epoch=epoch,
        sample=sample,
    )


def groups_of(slots: Sequence[Slot]) -> dict[int, list[Slot]]:
    """Slots by prompt group, both in order."""
    groups: dict[int, list[Slot]] = {}
    for slot in slots:
        groups.setdefault(slot.group_index, []).append(slot)
    return groups
