"""Run a person's generate hook over a few prompts with a small engine, through the whole rollout stage, in seconds."""

import contextlib
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import ContractViolation
from infra.hook_check.engine import SmallEngine, SmallModel
from infra.hook_check.findings import disagreement, no_signal, notes_on, wrong_log_probs
from infra.hook_check.limit import HookTooSlow, time_limit
from infra.hook_check.report import HookReport
from infra.hook_loading import load_scenario_hooks
from infra.ledger import read_segment
from infra.records.rollouts import read_table
from infra.records.sources import ModelRef
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.scenario.load import load
from infra.scenario.model import Scenario
from infra.scenario.review import refuse_unsupported
from infra.sources.host import this_host
from infra.sources.model import fetch_model
from tasks.download.stage import publish_prompts
from tasks.reward_normalization.normalize import normalised_advantages
from tasks.rollout.stage import RolloutStage
from tasks.rollout.stop import load_tokenizer

BASE = "tiny"
MODEL = "embedded://tiny"
LIMIT_SECONDS = 180.0
REVERSED = (False, False, True)  # whether the engine answers in the other order, for each pass
PASSES = len(REVERSED)
TOO_SLOW = (
    "Give what the hook waits for a time limit of its own; if it is only slow, give the check more: --limit SECONDS."
)


def scenario_of(hook: str, overrides: list[str] | None) -> Scenario:
    """The scenario `tiny` for one iteration, with the hook (`my.module:fn` or `my.module.fn`) and overrides.

    Raises:
        ConfigurationError: see `infra.scenario.load.load`.
    """
    path = hook.replace(":", ".", 1)
    return load(BASE, ["rollout.iterations=1", *(overrides or []), f"rollout.generate={path}", f"model={MODEL}"])


def check_hook(scenario: Scenario, packages: tuple[str, ...], limit_seconds: float = LIMIT_SECONDS) -> HookReport:
    """Run the hooks of a scenario three times, on two orders in which engine calls end. In the main thread only.

    Args:
        packages: that hooks may come from.
        limit_seconds: longest that the three passes may take together.
    Raises:
        ConfigurationError: a hook does not load, or the scenario asks for what is not done here.
    """
    refuse_unsupported(scenario)
    load_scenario_hooks(scenario, packages)
    done = Progress(rollouts=scenario.rollouts_per_iteration)
    fault: str
    try:
        with time_limit(limit_seconds):
            return _report(scenario, packages, done)
    except HookTooSlow as slow:
        fault = f"{slow.message} {done.in_words} {TOO_SLOW}"
    except ContractViolation as refused:
        fault = str(refused)
    return HookReport(hook=scenario.rollout.generate, reward=scenario.rollout.reward, faults=(fault,))


@dataclass(kw_only=True)
class Progress:
    """How far a check has come: rollouts of the current pass whose hook has ended."""

    rollouts: int
    passes: int = 0
    ended: int = 0

    def begin_pass(self) -> None:
        self.passes, self.ended = self.passes + 1, 0

    def one_more(self, tokens: int) -> None:
        self.ended += 1

    @property
    def in_words(self) -> str:
        if self.passes == 0:
            return "The model was still being loaded."
        return f"In pass {self.passes} of {PASSES}, {self.ended} of {self.rollouts} rollouts had ended."


@dataclass(frozen=True, kw_only=True)
class Made:
    """What one pass over the prompts left: rows of the rollouts table, log-probs by (rollout, sibling), the ledger."""

    rows: list[dict[str, Any]]
    log_probs: dict[tuple[int, int], list[float]]
    events: list[dict[str, Any]]


def _report(scenario: Scenario, packages: tuple[str, ...], done: Progress) -> HookReport:
    model_ref = fetch_model(MODEL, this_host())
    model = SmallModel(model_ref.path)
    first, again, reordered = (_run(scenario, packages, model_ref, model, reverse, done) for reverse in REVERSED)
    faults = [
        *disagreement(first.rows, again.rows, reordered.rows),
        *wrong_log_probs(first.rows, first.log_probs, model, scenario.rollout.temperature),
    ]
    siblings = Counter(row["index"] for row in first.rows)
    calls = [call for e in first.events if e["event"] == "generated" for call in e.get("calls", ())]
    rewards = {row["index"]: (row["group_index"], row["reward"]) for row in first.rows}
    groups: dict[int, set[float]] = {}
    for group, reward in rewards.values():
        groups.setdefault(group, set()).add(reward)
    mixed = sum(len(values) > 1 for values in groups.values()) / len(groups)
    return HookReport(
        hook=scenario.rollout.generate,
        reward=scenario.rollout.reward,
        faults=tuple(faults),
        notes=(*notes_on(first.rows, first.log_probs, first.events, scenario), *no_signal(mixed, scenario)),
        rollouts=len(siblings),
        fan_outs=dict(sorted(Counter(siblings.values()).items())),
        calls=dict(sorted(Counter(call["call"] for call in calls).items())),
        generated_tokens=sum(call["tokens"] for call in calls),
        mean_reward=sum(reward for _, reward in rewards.values()) / len(rewards),
        mixed_groups=mixed,
    )


def _run(
    scenario: Scenario,
    packages: tuple[str, ...],
    model_ref: ModelRef,
    model: SmallModel,
    reverse: bool,
    done: Progress,
) -> Made:
    """The rollout stage and the reward normalisation, in a store that is thrown away.

    Raises:
        ContractViolation: a hook did what the contract refuses, or no rollout was left.
    """
    with tempfile.TemporaryDirectory(prefix="fanline-hook-check-") as name:
        folder = Path(name)
        run = Run(run_id="hook-check", scenario=scenario, store_uri=str(folder / "store"), spool=folder / "spool")
        tokenizer = load_tokenizer(model_ref.path)
        stage = RolloutStage(
            run=run, model_path=model_ref.path, tokenizer=tokenizer, iteration=0, hook_packages=packages
        )
        slots = stage.slots(publish_prompts(run, model_ref, packages))
        done.begin_pass()
        engine = SmallEngine(model=model, highest_seed_first=reverse)
        ref = stage.run_with(slots, lambda: contextlib.nullcontext(engine), done.one_more)
        table = read_table(run.store, ref.table)
        events = [e for segment in ref.ledger for e in read_segment(run.store, run.run_id, segment)]
        if table.num_rows == 0:
            reasons = sorted({e["reason"] for e in events if e["event"] == "dropped"})
            raise ContractViolation(f"Hook {scenario.rollout.generate}: every rollout was dropped: {reasons}.")
        post_process = load_scenario_hooks(scenario, packages)[2]
        normalised_advantages(table, post_process.function, post_process.path, ScenarioArgs(scenario, model_ref.path))
        log_probs = read_table(run.store, ref.log_probs).to_pylist()
    return Made(
        rows=table.to_pylist(),
        log_probs={(row["rollout_id"], row["sibling"]): row["log_probs"] for row in log_probs},
        events=events,
    )
