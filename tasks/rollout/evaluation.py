"""The evaluation behind an iteration: the rollout stage on prompts of its own, whose samples are never trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hooks.sample import Status
from infra.ledger import LedgerWriter
from infra.records.rollouts import read_table
from infra.records.sources import PromptsRef
from infra.run import Run
from tasks.rollout.contract import Rollout
from tasks.rollout.draw import EVALUATION_IDS, Slot, evaluation_slots
from tasks.rollout.grade import scalar_reward
from tasks.rollout.stage import RolloutStage

STAGE = "evaluation"


def evaluated(run: Run) -> Run:
    """The run as its evaluations see it: their data, number of rollouts, temperature and budget, and no filters."""
    scenario, asked = run.scenario, run.scenario.evaluation
    assert asked is not None, scenario.name
    rollout = {
        "rollouts_per_prompt": asked.rollouts_per_prompt,
        "temperature": asked.temperature or scenario.rollout.temperature,
        "max_response_tokens": asked.max_response_tokens or scenario.rollout.max_response_tokens,
        "partial": "none",
        "dynamic_filter": None,
        "sample_filter": None,
        "log": None,
    }
    changed = {"rollout": scenario.rollout.model_copy(update=rollout), "data": asked.data}
    return replace(run, scenario=scenario.model_copy(update=changed))


@dataclass(frozen=True, kw_only=True)
class EvaluationStage(RolloutStage):
    """`RolloutStage` of a run as `evaluated` gives it; groups, slots and unset rollout ids begin at EVALUATION_IDS."""

    stage: ClassVar[str] = STAGE
    prefix: ClassVar[str] = "evaluation-"
    first_id: ClassVar[int] = EVALUATION_IDS
    evaluation: ClassVar[bool] = True

    def slots(self, prompts: PromptsRef) -> list[Slot]:
        """The first `evaluation.prompts` prompts of the evaluation's own data."""
        asked, own = self.run.scenario.evaluation, prompts.evaluation
        assert asked is not None and own is not None, "the scenario has no evaluation"
        table = read_table(self.run.store, own.table)
        return evaluation_slots(self.run.scenario, table.slice(0, asked.prompts), self.iteration)

    def _filter(self, rollouts: list[Rollout], ledger: LedgerWriter) -> tuple[list[Rollout], dict[str, float]]:
        return rollouts, self._figures(rollouts)

    def _figures(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The mean over rollouts; those that were dropped, with a reason in the ledger, are not in it."""
        rewards = [scalar_reward(r.siblings[-1].reward, r, self._grading) for r in rollouts]
        truncated = sum(s.status is Status.TRUNCATED for r in rollouts for s in r.siblings)
        samples = sum(len(r.siblings) for r in rollouts)
        return {
            "mean reward": sum(rewards) / max(len(rewards), 1),
            "rollouts": float(len(rewards)),
            "truncated share": truncated / max(samples, 1),
        }
