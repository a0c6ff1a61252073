"""One run of a scenario in a process of its own, timed: `python -m infra.bench.one_run flow|plain SCENARIO FOLDER`."""

import json
import sys
import time
from pathlib import Path

from infra.run import Run
from infra.scenario.load import load


def main(kind: str, name: str, folder: Path) -> None:
    scenario = load(name)
    if kind == "flow":
        from flows.fanout_regression import fanout_regression

        started = time.monotonic()
        state = fanout_regression(scenario, store=str(folder / "store"), return_state=True)
        seconds, verdict, run_id = time.monotonic() - started, state.name, str(state.message).split(":")[0]
    else:
        from infra.bench.plain_run import plain_run

        run_id = f"{name}-plain"
        started = time.monotonic()
        run = Run(run_id=run_id, scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")
        verdict = plain_run(run).outcome.name
        seconds = time.monotonic() - started
    from infra.bench.plain_run import last_weights

    made = Run(run_id=run_id, scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")
    print(json.dumps({"seconds": seconds, "verdict": verdict, "weights": last_weights(made)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
