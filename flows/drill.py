"""The checks' own test as a flow: known faults, one at a time, and the matrix of which check was red."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from infra.settings import settings

if TYPE_CHECKING:
    from infra.drill.drill import Matrix


@flow(name="fault-drill", persist_result=False)
def fault_drill(names: list[str] | None = None, quick: bool = False) -> State:
    """Put each fault of the table into the pipeline and see that the right check turns red.

    Args:
        names: faults of the table; all of them by default.
        quick: only those that are short enough for every change.
    """
    return as_state(run_drill(names or [], [], quick=quick))


def run_drill(names: list[str], hooks: list[str], *, quick: bool, overrides: Sequence[str] = ()) -> Matrix:
    """The drill and its artifact, inside a flow.

    Args:
        hooks: faults of a person's own, which no parameter of the flow can name.
        overrides: `a.b=value` on top of every scene.
    """
    from infra.drill.choose import chosen
    from infra.drill.drill import drill
    from infra.drill.matrix_table import artifact_rows, headline, say

    matrix = drill(chosen(names, hooks, settings().hook_packages, quick=quick), say, overrides)
    create_table_artifact(table=artifact_rows(matrix), key="drill", description=headline(matrix))
    return matrix


def as_state(matrix: Matrix) -> State:
    """Completed where every fault was caught and no clean run was red."""
    from infra.drill.matrix_table import headline

    kind, name = (Completed, "PASS") if matrix.ok else (Failed, "REGRESSION")
    return kind(name=name, message=headline(matrix))
