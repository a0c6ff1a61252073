"""How often a clean run is called anything but PASS: many seeds, without SGLang, on real trainer ranks."""

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.drill.stage import ready_stack, run_scene
from infra.records.verdict import Outcome
from infra.run import Run
from infra.scenario.load import load

SCENARIOS = ("tiny", "fanout-signal")
# Engine-free runs are replayed by nobody: those two checks have processes of their own in a whole run.
OFF = ["checks.determinism=false", "checks.invariance=false"]


def run(sizes: Sequence[int] = (20,)) -> dict[str, Any]:
    """Verdicts of seeds 0, 1, … of each scenario; every one that is not PASS is a false alarm.

    Args:
        sizes: one number, of seeds a scenario.
    """
    return {name: _scenario(name, sizes[0]) for name in SCENARIOS}


def _scenario(name: str, seeds: int) -> dict[str, Any]:
    started, verdicts, alarms = time.monotonic(), Counter(), {}
    with tempfile.TemporaryDirectory(prefix="fanline-clean-") as folder:
        root = Path(folder)
        with ready_stack(root, load(name, OFF)) as stack:
            for seed in range(seeds):
                scenario = load(name, [*OFF, f"seed={seed}"])
                made = Run(
                    run_id=f"{name}-{seed}",
                    scenario=scenario,
                    store_uri=str(root / "store"),
                    spool=root / "spool" / f"{name}-{seed}",
                )
                stack.trainer.begin(made, {}, {})
                verdict = run_scene(stack, made)
                verdicts[verdict.outcome.name] += 1
                if verdict.outcome is not Outcome.PASS:
                    alarms[str(seed)] = f"{verdict.outcome.name}: {verdict.message[:300]}"
    return {
        "seeds": seeds,
        "passed": verdicts[Outcome.PASS.name],
        "false_alarms": seeds - verdicts[Outcome.PASS.name],
        "alarms_by_seed": alarms,
        "seconds": round(time.monotonic() - started, 1),
    }
