"""The rollout stage of one iteration, from prompts to graded rollouts in the store."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from infra.errors import FanlineError
from infra.hook_loading import HOOK_PACKAGES, Hook, Kind, load_hook
from infra.ledger import LedgerWriter
from infra.records.rollouts import (
    RolloutsRef,
    log_probs_table,
    partial_table,
    read_table,
    rollouts_table,
    write_table,
)
from infra.records.sources import PromptsRef
from infra.run import Run
from infra.scenario.args import ScenarioArgs
from infra.store import canonical_json, sha256
from tasks.rollout.calls import CallSettings, Engine, Tokenizer
from tasks.rollout.contract import Rollout, identify
from tasks.rollout.draw import Slot, draw_slots, groups_of
from tasks.rollout.filter import drop_groups, figures_of, remove_samples
from tasks.rollout.generate import GenerationStage, generate_all
from tasks.rollout.grade import GradingStage, grade_all, scalar_reward
from tasks.rollout.partial import Held, continued, held_rows, hold_back
from tasks.rollout.stop import stop_token_ids
from tasks.rollout.table import log_prob_rows, rollout_rows, used_ids, versions

Progress = Callable[[int], None]
OpenClient = Callable[[], AbstractAsyncContextManager[Engine]]


@dataclass(frozen=True, kw_only=True)
class RolloutStage:
    """The stage of one iteration; `run_with` does the work, everything else says what with.

    Args:
        model_path: folder of the model, for its tokenizer's stop tokens and for `args.hf_checkpoint`.
        hook_packages: packages that this deployment lets hooks come from, whoever names them.
    """

    run: Run
    model_path: Path
    tokenizer: Tokenizer
    iteration: int
    hook_packages: tuple[str, ...] = HOOK_PACKAGES

    stage: ClassVar[str] = "rollout"
    prefix: ClassVar[str] = ""  # of the names under which an iteration's tables are published
    first_id: ClassVar[int] = 0
    evaluation: ClassVar[bool] = False

    def slots(self, prompts: PromptsRef) -> list[Slot]:
        """What is to be generated, behind what goes on from before; too few prompts for the run are refused here."""
        table = read_table(self.run.store, prompts.table)
        return [*held_slots(self.run, table, self.iteration), *draw_slots(self.run.scenario, table, self.iteration)]

    def run_with(
        self, slots: Sequence[Slot], client: OpenClient, progress: Progress = lambda tokens: None
    ) -> RolloutsRef:
        """Generate, grade and publish.

        Args:
            client: opens a client of the engine in the event loop that it is used in.
            progress: called after each rollout with the tokens it generated.

        The ledger of an attempt that ends with an error is published too, and says so in its last line; the record
        of the stage names only the ledger of the attempt that finished.

        Raises:
            ContractViolation: a hook did what the contract refuses (HookFailed: it raised).
            EngineUnavailable: the engine does not answer.
        """
        run = self.run
        with LedgerWriter(run.run_id, self.stage, self.iteration, run.spool) as ledger:
            try:
                made, held = asyncio.run(self._in_loop(slots, client, ledger, progress))
                rollouts, figures = self._filter(made, ledger)
            except FanlineError as fault:
                ledger.write("ended early", error=type(fault).__name__, reason=str(fault))
                ledger.seal(run.store)
                raise
            return self._publish(rollouts, held, figures, ledger)

    async def _in_loop(
        self, slots: Sequence[Slot], client: OpenClient, ledger: LedgerWriter, progress: Progress
    ) -> tuple[list[Rollout], list[Held]]:
        async with client() as engine:
            return await self._generate_and_grade(slots, engine, ledger, progress)

    async def _generate_and_grade(
        self, slots: Sequence[Slot], engine: Engine, ledger: LedgerWriter, progress: Progress
    ) -> tuple[list[Rollout], list[Held]]:
        rollout = self.run.scenario.rollout
        generation = GenerationStage(
            args=self._args,
            hook_of=self._generate_hook,
            settings=self._call_settings(),
            engine=engine,
            tokenizer=self.tokenizer,
            attempts=rollout.attempts,
            concurrency=rollout.concurrency,
            hook_seconds=rollout.hook_deadline_seconds,
            ledger=ledger,
            holds_back=self._holds_back,
            mask_offpolicy=rollout.partial == "mask_offpolicy",
            evaluation=self.evaluation,
            progress=progress,
        )
        for event, goes_on in (("continued", True), ("drawn", False)):
            groups = groups_of([slot for slot in slots if slot.continued is goes_on]).values()
            ledger.write_all(event, [_drawn(group, self._generate_hook(group[0])) for group in groups])
        rollouts, held = hold_back(await generate_all(slots, generation))
        ledger.write_all("held", [_held(one) for one in held])
        identify(rollouts, used_ids(self.run, self.iteration, self.stage), self.first_id)
        ledger.write_all("generated", [line for r in rollouts for line in _generated(r)])
        await grade_all(rollouts, self._grading)
        ledger.write_all("graded", [line for r in rollouts for line in self._graded(r)])
        return rollouts, held

    @property
    def _holds_back(self) -> bool:
        """The last iteration has no next one."""
        scenario = self.run.scenario
        return scenario.rollout.partial != "none" and self.iteration < scenario.rollout.iterations - 1

    def _filter(self, rollouts: list[Rollout], ledger: LedgerWriter) -> tuple[list[Rollout], dict[str, float]]:
        """What the scenario's filters leave, and figures of it; what they take out is in the ledger."""
        hooks, figures = self.run.scenario.rollout, {}
        if hooks.dynamic_filter:
            kept, dropped = drop_groups(rollouts, self._hook(hooks.dynamic_filter, "dynamic_filter"), self._args)
            ledger.write_all("dropped", dropped)
            rewards = [scalar_reward(r.siblings[-1].reward, r, self._grading) for r in rollouts]
            figures["rollouts dropped by the dynamic filter"] = float(len(dropped))
            figures["mean reward before the dynamic filter"] = sum(rewards) / max(len(rewards), 1)
            rollouts = kept
        sample_filter = self._hook(hooks.sample_filter, "sample_filter") if hooks.sample_filter else None
        ledger.write_all("removed", remove_samples(rollouts, sample_filter, self._args))
        if hooks.log:
            figures |= figures_of(rollouts, self._hook(hooks.log, "log"), self._args, self.iteration)
        return rollouts, figures

    def _publish(
        self, rollouts: list[Rollout], held: list[Held], figures: dict[str, float], ledger: LedgerWriter
    ) -> RolloutsRef:
        run, where = self.run, f"{self.run.key('iterations', self.iteration)}/{self.prefix}"
        rows = rollout_rows(rollouts, lambda reward, rollout: scalar_reward(reward, rollout, self._grading))
        return RolloutsRef(
            iteration=self.iteration,
            table=write_table(run.store, f"{where}rollouts-{{digest}}.parquet", rollouts_table(rows)),
            log_probs=write_table(
                run.store, f"{where}engine-log-probs-{{digest}}.parquet", log_probs_table(log_prob_rows(rollouts))
            ),
            ledger=(ledger.seal(run.store),),
            samples=len(rows),
            rollouts=len(rollouts),
            generated_tokens=sum(len(call.tokens) for r in rollouts for call in r.calls),
            weight_version=versions([s for r in rollouts if not r.slot.continued for s in r.siblings]),
            figures=figures,
            held=write_table(run.store, f"{where}held-{{digest}}.parquet", partial_table(held_rows(held)))
            if held
            else None,
        )

    @property
    def _args(self) -> ScenarioArgs:
        return ScenarioArgs(self.run.scenario, self.model_path)

    @property
    def _grading(self) -> GradingStage:
        rollout = self.run.scenario.rollout
        return GradingStage(
            args=self._args,
            hook_of=self._reward_hook,
            scored_apart=rollout.siblings_scored_apart,
            concurrency=rollout.concurrency,
            hook_seconds=rollout.hook_deadline_seconds,
        )

    def _generate_hook(self, slot: Slot) -> Hook:
        """The scenario's hook, or the one that the prompt's metadata names as `generate_function_path`."""
        path = slot.sample.metadata.get("generate_function_path")
        return self._hook(path or self.run.scenario.rollout.generate, "generate")

    def _reward_hook(self, rollout: Rollout) -> Hook:
        """The scenario's hook, or the one that the prompt's own metadata names as `custom_rm_path`."""
        path = rollout.slot.sample.metadata.get("custom_rm_path")
        return self._hook(path or self.run.scenario.rollout.reward, "reward")

    def _hook(self, path: str, kind: Kind) -> Hook:
        return _loaded(path, kind, self.hook_packages)

    def _call_settings(self) -> CallSettings:
        scenario = self.run.scenario
        return CallSettings(
            seed=scenario.seed,
            iteration=self.iteration,
            max_response_tokens=scenario.rollout.max_response_tokens,
            temperature=scenario.rollout.temperature,
            top_p=scenario.rollout.top_p,
            stop_token_ids=stop_token_ids(self.tokenizer, self.model_path, scenario.rollout.stop),
        )

    def _graded(self, rollout: Rollout) -> list[dict]:
        return [
            {
                "rollout_id": s.rollout_id,
                "sibling": k,
                "index": s.index,
                "hook": self._reward_hook(rollout).path,
                "reward": scalar_reward(s.reward, rollout, self._grading),
            }
            for k, s in enumerate(rollout.siblings)
        ]


def held_slots(run: Run, prompts: pa.Table, iteration: int) -> list[Slot]:
    """The slots that the iteration before held back, with the calls that they have made so far.

    Args:
        prompts: of the source, schema PROMPTS_SCHEMA.
    """
    before = run.finished("rollout", iteration - 1) if iteration else None
    held = RolloutsRef.from_dict(before).held if before else None
    if held is None:
        return []
    rows = read_table(run.store, held).to_pylist()
    indices = {row["index"] for row in rows}
    drawn = sorted({row["group_index"] // run.scenario.rollout.prompts for row in rows})
    slots = [slot for origin in drawn for slot in draw_slots(run.scenario, prompts, origin)]
    return [continued(slot, rows, iteration) for slot in slots if slot.index in indices]


_loaded = lru_cache(load_hook)


def forget_hooks() -> None:
    """Load hooks anew: for callers that run several scenarios with changed hooks in one process."""
    _loaded.cache_clear()


def _drawn(group: Sequence[Slot], hook: Hook) -> dict:
    first, text = group[0], group[0].sample.prompt
    ids = {"group_index": first.group_index, "prompt_id": first.prompt_id, "epoch": first.epoch}
    digest = {"prompt_digest": sha256(text.encode())} if isinstance(text, str) else {}
    return {**ids, **digest, "indices": [slot.index for slot in group], "hook": hook.path}


def _held(one: Held) -> dict:
    ids = {"index": one.slot.index, "group_index": one.slot.group_index, "reason": one.reason}
    return {**ids, "calls": len(one.calls), "tokens": sum(len(call.tokens) for call in one.calls)}


def _generated(rollout: Rollout) -> list[dict]:
    """One line a sample. The first sibling's line names the engine calls that the rollout was made of.

    `rewarded` says that the generate hook has set the reward of the rollout itself.
    """
    rewarded = any(s.reward is not None for s in rollout.siblings)
    calls = [
        {"call": c.call, "turn": c.turn, "asked": c.asked, "tokens": len(c.tokens), "finish_reason": c.finish_reason}
        for c in rollout.calls
    ]
    return [
        {
            "rollout_id": s.rollout_id,
            "sibling": k,
            "index": s.index,
            "group_index": s.group_index,
            "attempt": rollout.attempt,
            "status": s.status.value,
            "tokens_digest": sha256(canonical_json([int(t) for t in s.tokens])),
            **({"rewarded": True} if rewarded else {}),
            **({"calls": calls} if k == 0 else {}),
        }
        for k, s in enumerate(rollout.siblings)
    ]
