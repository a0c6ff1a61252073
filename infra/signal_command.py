"""`fanline signal`: in how many of some seeds the rollouts of a scenario carry signal, without training on any."""

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from infra.progress import progress
from infra.records.rollouts import read_table
from infra.run import Run
from infra.scenario.model import Scenario
from infra.settings import settings
from infra.sglang.engine import SGLangEngine
from infra.sources.host import this_host
from infra.sources.model import fetch_model
from tasks.download.stage import publish_prompts
from tasks.rollout.stage import RolloutStage
from tasks.rollout.stop import load_tokenizer


def measure(scenario: Scenario, seeds: int) -> dict[str, Any]:
    """Generate and grade the first iteration for each of the seeds 0, 1, 2, …, on one engine.

    A seed carries signal where the rewards differ inside `checks.min_mixed_groups` of the prompt groups and every
    number of siblings in `checks.expected_fan_outs` occurs: the parts of non-vacuity that a seed decides.
    """
    model = fetch_model(scenario.model.uri, this_host())
    with tempfile.TemporaryDirectory(prefix="fanline-signal-") as folder:

        def run_of(seed: int) -> Run:
            seeded = scenario.model_copy(update={"seed": seed})
            return Run(f"signal-{seed}", seeded, str(Path(folder) / "store"), Path(folder) / "spool")

        with SGLangEngine.for_run(run_of(0), model) as engine, progress(f"seeds of {scenario.name}", seeds) as done:
            engine.wait_ready()
            rows = []
            for seed in range(seeds):
                run = run_of(seed)
                stage = RolloutStage(
                    run=run,
                    model_path=model.path,
                    tokenizer=load_tokenizer(model.path),
                    iteration=0,
                    hook_packages=settings().hook_packages,
                )
                ref = stage.run_with(stage.slots(publish_prompts(run, model, stage.hook_packages)), engine.client)
                rows.append({"seed": seed, **_figures(read_table(run.store, ref.table), scenario)})
                done(seed + 1)
    return {"scenario": scenario.name, "seeds": rows, "with_signal": sum(row["signal"] for row in rows)}


def _figures(table: pa.Table, scenario: Scenario) -> dict[str, Any]:
    rewards: dict[int, set[float]] = defaultdict(set)
    fan_out: dict[int, int] = defaultdict(int)
    by_rollout: dict[int, float] = {}
    for row in table.select(["group_index", "rollout_id", "reward"]).to_pylist():
        rewards[row["group_index"]].add(row["reward"])
        fan_out[row["rollout_id"]] += 1
        by_rollout[row["rollout_id"]] = row["reward"]
    mixed = sum(len(values) > 1 for values in rewards.values())
    wanted, found = set(scenario.checks.expected_fan_outs), sorted(set(fan_out.values()))
    return {
        "reward": round(sum(by_rollout.values()) / len(by_rollout), 4),
        "mixed_groups": mixed,
        "groups": len(rewards),
        "fan_outs": found,
        "signal": mixed >= scenario.checks.min_mixed_groups * len(rewards) and wanted <= set(found),
    }
