"""`fanline drill`: the checks' own test on this machine, with the matrix as its result."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from infra.prefect_api import prefect_api
from infra.run_command import stdout_for_the_result
from infra.settings import settings


def run_faults(names: list[str], hooks: list[str], *, quick: bool, as_json: bool, overrides: Sequence[str] = ()) -> int:
    """Run the drill and print its matrix; returns 0 where every fault was caught without a false alarm, else 1.

    Raises:
        FanlineError: a fault or a field that there is not, or a stack that does not start.
    """
    from infra.drill.choose import chosen
    from infra.drill.scene import scenes_with

    chosen(names, hooks, settings().hook_packages, quick=quick)  # wrong names are said before anything starts
    scenes_with(overrides)
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # The trainer's processes look for a person's own faults where this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())]))
    matrices = []
    with stdout_for_the_result(), prefect_api(settings().spool_dir / "prefect-server.log") as url:
        print(f"fanline: drill; watch it at {url.removesuffix('/api')}", file=sys.stderr)
        from prefect import flow

        from flows.drill import as_state, run_drill

        @flow(name="fault-drill", persist_result=False)
        def here():
            matrices.append(run_drill(names, hooks, quick=quick, overrides=overrides))
            return as_state(matrices[0])

        state = here(return_state=True)
        if not matrices:
            state.result()  # raises what kept the drill from its matrix
    matrix = matrices[0]
    if as_json:
        print(json.dumps(matrix.to_dict()))
    else:
        from infra.drill.matrix_table import rendered

        Console(width=max(Console().width, 160)).print(rendered(matrix))
    return 0 if matrix.ok else 1


def list_faults(*, as_json: bool) -> None:
    """Print the table: each fault, its scene, and the checks that have to and may be red."""
    from infra.drill.scene import SCENES
    from infra.drill.table import FAULTS

    if as_json:
        scenes = {scene.name: scene.what for scene in SCENES.values()}
        rows = [{k: v for k, v in vars(fault).items() if k != "replaces"} for fault in FAULTS]
        print(json.dumps({"scenes": scenes, "faults": rows}))
        return
    for fault in FAULTS:
        print(f"{fault.name:28} {fault.scene:9} {' or '.join(fault.must):22} {fault.what}")
    for scene in SCENES.values():
        print(f"scene {scene.name:22} {scene.what}")
