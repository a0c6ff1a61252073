"""One run of a scenario in a process of its own, timed: `python -m infra.bench.one_run flow|plain SCENARIO FOLDER`.

Both kinds import the same modules before the clock starts: what the flow imports when a task needs it, too.
"""

import json
import sys
import time
from pathlib import Path

from flows.fanout_regression import fanout_regression
from infra.bench.plain_run import last_weights, plain_run
from infra.run import Run
from infra.scenario.load import load
from tasks.report.publish import latest_summary


def main(kind: str, name: str, folder: Path) -> None:
    scenario = load(name)
    if kind == "flow":
        started = time.monotonic()
        state = fanout_regression(scenario, store=str(folder / "store"), return_state=True)
        seconds, verdict, run_id = time.monotonic() - started, state.name, str(state.message).split(":")[0]
    else:
        run_id = f"{name}-plain"
        started = time.monotonic()
        run = Run(run_id=run_id, scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")
        verdict = plain_run(run).outcome.name
        seconds = time.monotonic() - started
    made = Run(run_id=run_id, scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")
    summary = latest_summary(made.store, run_id)
    assert summary is not None, f"run {run_id} has left no summary"
    measured = {"seconds": seconds, "stages": summary["seconds_by_stage"]}
    print(json.dumps({**measured, "verdict": verdict, "weights": last_weights(made)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
