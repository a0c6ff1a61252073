"""A clean run of an independent plain-PyTorch loop passes every check; each bug put into it turns its check red."""

from dataclasses import replace

import pytest
import torch

from infra.errors import ContractViolation, EngineUnavailable
from infra.megatron.numeric import NumericFailure
from infra.records.training import TrainedIteration
from infra.records.verdict import Outcome, conclude
from tasks.counter_assertion.checks.non_vacuity import mixed_groups, ratios
from tasks.counter_assertion.reading import read_evidence
from tasks.counter_assertion.registry import NAMES, run_checks
from tasks.training.steps import NoFullStep
from tests.cases_of import case, numbers_in
from tests.counter_assertion.conftest import evidence_of
from tests.counter_assertion.plain_loop import PROMPTS, PlainLoop
from tests.gradients import grad_of

ONE = {"rollout": {"iterations": 1}}
DATA = {"normalisation", "steps", "loss-oracle"}


def results(loop: PlainLoop, fault=None) -> dict:
    return {r.name: r for r in run_checks(evidence_of(loop, fault))}


def red(found: dict) -> set[str]:
    return {name for name, r in found.items() if r.status not in ("pass", "not run")}


def test_a_clean_run_passes_every_check_that_runs(loop_of):
    found = results(loop_of())
    assert {n: r.reason for n, r in found.items() if n in red(found)} == {}
    assert [n for n, r in found.items() if r.status == "not run"] == []
    assert tuple(found) == NAMES
    assert conclude(list(found.values()), plumbing_only=False).outcome is Outcome.PASS
    assert found["loss-oracle"].figures["largest gradient error"] < 1e-6


class SiblingDropped(PlainLoop):
    def stored(self, rows):
        return [r for r in rows if (r["rollout_id"], r["sibling"]) != (1, 1)]


class LineTwice(PlainLoop):
    def events(self, name, lines):
        return [*lines, lines[0]] if name == "generated" else lines


class TrainedTwice(PlainLoop):
    def events(self, name, lines):
        return [*lines, lines[-1]] if name == "trained" else lines


class PackedTwice(PlainLoop):
    def split(self, rows):
        first, *others = super().split(rows)
        return [[*first, first[0]], *others]


class SiblingsSplitOverSteps(PlainLoop):
    def split(self, rows):
        first, second = super().split(rows)
        return [first[:-1], [first[-1], *second]]


class StepsOffByOne(PlainLoop):
    def split(self, rows):
        return super().split(rows)[:1]


class IdOfTwoGroups(PlainLoop):
    def rollout_id(self, index, sibling):
        return 0 if index == 4 else index


class IdPerSibling(PlainLoop):
    def rollout_id(self, index, sibling):
        return index + 100 * sibling


class CalledTwice(PlainLoop):
    def calls_of(self, index):
        return [("called", 1), ("called", 1)] if index == 3 else [("called", 1)]


class RetriedWithoutFailure(PlainLoop):
    def calls_of(self, index):
        return [("called", 1), ("called", 2)] if index == 3 else [("called", 1)]


class NeverCalled(PlainLoop):
    def calls_of(self, index):
        return [] if index == 3 else [("called", 1)]


class StockFallback(PlainLoop):
    def hook_of(self, index):
        return "hooks.stock.generate" if index == 5 else super().hook_of(index)


class DrawnForAnotherHook(PlainLoop):
    def drawn_hook(self, prompt_id):
        return "hooks.stock.generate" if prompt_id == "row-1" else super().drawn_hook(prompt_id)

    def hook_of(self, index):
        return self.drawn_hook(f"row-{index // self.run.scenario.rollout.rollouts_per_prompt}")


class OwnHookOfAPrompt(DrawnForAnotherHook):
    """Right: the source's row names that hook itself."""

    def metadata(self, prompt_id):
        return {"generate_function_path": "hooks.stock.generate"} if prompt_id == "row-1" else {}


class NoHookOfAPrompt(PlainLoop):
    """Right: the source's row names null, as a Parquet struct does for what a row lacks."""

    def metadata(self, prompt_id):
        return {"generate_function_path": None, "custom_rm_path": None}


class OwnHookIgnored(PlainLoop):
    def metadata(self, prompt_id):
        return {"generate_function_path": "hooks.stock.generate"} if prompt_id == "row-1" else {}


class VotePerSample(PlainLoop):
    def voter(self, row):
        return row["rollout_id"], row["sibling"]


class SignFlipped(PlainLoop):
    def token_loss(self, ratio, advantage):
        return -super().token_loss(ratio, advantage)


class DenominatorPerSample(PlainLoop):
    def weight(self, row, members):
        return 1 / (len({r["rollout_id"] for r in members}) * sum(row["loss_mask"]))


class TokenMean(PlainLoop):
    def weight(self, row, members):
        return 1 / sum(sum(r["loss_mask"]) for r in members)


class BatchCountedInSamples(PlainLoop):
    def weight(self, row, members):
        return super().weight(row, members) * len({r["rollout_id"] for r in members}) / len(members)


class MaskIgnored(PlainLoop):
    def trained_mask(self, row):
        return [1] * row["response_length"]


class MaskShifted(PlainLoop):
    def trained_mask(self, row):
        return [*row["loss_mask"][1:], row["loss_mask"][0]]


class HalfGradient(PlainLoop):
    def after_backward(self):
        for p in self.policy.parameters():
            grad_of(p).mul_(0.5)


class OneTensorNotStepped(PlainLoop):
    def update(self):
        weights = self.policy.get_parameter("model.layers.1.mlp.up_proj.weight")
        before = weights.detach().clone()
        super().update()
        with torch.no_grad():
            weights.copy_(before)


class RateDoubled(PlainLoop):
    def update(self):
        for group in self.optimizer.param_groups:
            group["lr"] = 2 * self.run.scenario.training.learning_rate
        super().update()


class RateOfItsOwn(RateDoubled):
    """The trainer says truly that it took another rate than the scenario's."""

    def step(self, *args, **kwargs):
        result = super().step(*args, **kwargs)
        return replace(result, learning_rate=2 * result.learning_rate)


class MomentsLost(PlainLoop):
    def update(self):
        self.optimizer.state.clear()
        super().update()


class OneTensorNotReduced(PlainLoop):
    def after_backward(self):
        grad_of(self.policy.get_parameter("model.layers.1.input_layernorm.weight")).mul_(0.9)


class LabelsShifted(PlainLoop):
    def label(self, prompt_id):
        names = list(PROMPTS)
        return PROMPTS[names[(names.index(prompt_id) + 1) % len(names)]]


class GraderAlwaysZero(PlainLoop):
    def grade(self, response, label):
        return 0.0


class WeightsNotSynced(PlainLoop):
    def copy_weights(self):
        pass


class OneTensorNotSynced(PlainLoop):
    def copy_weights(self):
        left_out = "model.layers.0.self_attn.v_proj.bias"
        weights = {n: w for n, w in self.policy.state_dict().items() if n != left_out}
        self.engine.load_state_dict(weights, strict=False)


class TemperatureMissing(PlainLoop):
    def temperature(self, model):
        return 1.0 if model is self.policy else super().temperature(model)


class RankLostTheLastLine(PlainLoop):
    def events(self, name, lines):
        return lines[:-1] if name == "trained" else lines


class OtherTokensStored(PlainLoop):
    def stored(self, rows):
        return [{**rows[0], "tokens": [*rows[0]["tokens"][:-1], 1 + rows[0]["tokens"][-1] % 20]}, *rows[1:]]


@pytest.mark.parametrize(
    ("bug", "check", "may_be_red_too"),
    [
        (SiblingDropped, "ledger", set()),
        (LineTwice, "ledger", set()),
        (TrainedTwice, "ledger", set()),
        (PackedTwice, "ledger", {"loss-oracle", "steps"}),
        (RankLostTheLastLine, "ledger", set()),
        (OtherTokensStored, "ledger", {"rewards"}),
        (SiblingsSplitOverSteps, "steps", {"loss-oracle"}),
        (StepsOffByOne, "steps", {"non-vacuity"}),
        (IdOfTwoGroups, "identity", DATA | {"non-vacuity"}),  # 15 rollouts make one step only
        (IdPerSibling, "identity", DATA),
        (CalledTwice, "counter", set()),
        (RetriedWithoutFailure, "counter", set()),
        (NeverCalled, "counter", set()),
        (StockFallback, "counter", set()),
        (DrawnForAnotherHook, "counter", set()),
        (OwnHookIgnored, "counter", set()),
        (VotePerSample, "normalisation", {"loss-oracle"}),
        (SignFlipped, "loss-oracle", set()),
        (DenominatorPerSample, "loss-oracle", set()),
        (TokenMean, "loss-oracle", set()),
        (BatchCountedInSamples, "loss-oracle", set()),
        (MaskIgnored, "loss-oracle", set()),
        (MaskShifted, "loss-oracle", set()),
        (HalfGradient, "loss-oracle", set()),
        (OneTensorNotReduced, "loss-oracle", set()),
        (OneTensorNotStepped, "optimizer", set()),
        (RateDoubled, "optimizer", set()),
        (RateOfItsOwn, "optimizer", set()),
        (LabelsShifted, "rewards", set()),
        (GraderAlwaysZero, "rewards", {"non-vacuity", "weight-sync"}),
        (WeightsNotSynced, "weight-sync", set()),
        (OneTensorNotSynced, "weight-sync", set()),
        (TemperatureMissing, "on-policy", {"loss-oracle"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_bug_turns_its_check_red(loop_of, bug, check, may_be_red_too):
    found = results(loop_of(bug, **ONE))
    assert found[check].status == "fail", found[check]
    assert found[check].ids or check in ("rewards", "counter")
    assert red(found) <= {check} | may_be_red_too, {n: found[n].reason for n in red(found)}
    assert conclude(list(found.values()), plumbing_only=False).outcome is Outcome.REGRESSION


def test_moments_that_are_lost_between_steps_are_the_optimizers(loop_of):
    four_steps = {**ONE, "training": {"global_batch_size": 4, "weight_decay": 0.1}}
    assert red(results(loop_of(run_id="clean", **four_steps))) == set()
    found = results(loop_of(MomentsLost, run_id="lost", **four_steps))
    assert red(found) == {"optimizer"} and "after step 1 of iteration 0" in found["optimizer"].reason


def test_a_gradient_that_is_off_by_a_factor_is_said_to_be(loop_of):
    found = results(loop_of(HalfGradient, **ONE))
    assert "the whole gradient is 0.5 times the reference's" in found["loss-oracle"].reason


def test_a_hook_that_a_prompt_names_as_null_is_the_scenarios(loop_of):
    assert red(results(loop_of(NoHookOfAPrompt, **ONE))) == set()


def test_a_prompt_may_name_its_own_hook(loop_of):
    found = results(loop_of(OwnHookOfAPrompt, **ONE))
    assert red(found) == set()
    assert found["counter"].figures["hook"] == "hooks.stock.generate, hooks.subagents.solve_in_parts"


class OwnRewardOfAPrompt(PlainLoop):
    """Right: the source's row names the reward hook that its rollouts are graded by."""

    def metadata(self, prompt_id):
        return {"custom_rm_path": "tests.counter_assertion.own_hooks.other_way_round"} if prompt_id == "row-1" else {}

    def sample(self, i, group, index, sibling):
        row = super().sample(i, group, index, sibling)
        self.now = row["prompt_id"]
        return row

    def grade(self, response, label):
        return float((response == label) is (self.now != "row-1"))


class OwnRewardIgnored(OwnRewardOfAPrompt):
    def grade(self, response, label):
        return float(response == label)


def test_a_prompt_may_name_its_own_reward(loop_of):
    def red_of(loop):
        evidence = replace(evidence_of(loop), hook_packages=("hooks", "tests"))
        return {r.name: r.reason for r in run_checks(evidence) if r.status not in ("pass", "not run")}

    assert red_of(loop_of(OwnRewardOfAPrompt, **ONE)) == {}
    ignored = red_of(loop_of(OwnRewardIgnored, run_id="ignored", **ONE))
    assert set(ignored) == {"rewards"} and "graded again" in ignored["rewards"]


class RewardedByItsGenerateHook(PlainLoop):
    def grade(self, response, label):
        return 2.0 + float(response == label)

    def events(self, name, lines):
        return [{**line, "rewarded": True} for line in lines] if name == "generated" else lines


def test_rewards_that_a_generate_hook_has_set_are_not_asked_for_again(loop_of):
    found = results(loop_of(RewardedByItsGenerateHook, **ONE))
    assert red(found) == set() and found["rewards"].figures["rollouts graded again"] == 0


class Retried(PlainLoop):
    def calls_of(self, index):
        return [("called", 1), ("attempt_failed", 1), ("called", 2)] if index == 3 else [("called", 1)]


def test_a_retry_after_a_failed_attempt_is_not_a_double_call(loop_of):
    found = results(loop_of(Retried, **ONE))
    assert red(found) == set()
    assert found["counter"].figures["retries"] == 1


class StaleLedger(PlainLoop):
    def segment(self, stage, i, events):
        if stage != "rollout":
            return super().segment(stage, i, events)
        own, self.run = self.run, replace(self.run, run_id="an-earlier-run")
        try:
            return super().segment(stage, i, events)
        finally:
            self.run = own


def test_the_ledger_of_an_earlier_run_is_named(loop_of):
    found = results(loop_of(StaleLedger, **ONE))
    assert found["ledger"].status == "fail"
    assert "belongs to run an-earlier-run" in found["ledger"].reason
    assert red(found) <= {"ledger", "counter"}


class LineCopied(PlainLoop):
    def segment(self, stage, i, events):
        ref = super().segment(stage, i, events)
        lines = self.run.store.read(ref).splitlines(keepends=True)
        return self.run.store.publish(f"{ref.key}.copied", b"".join([*lines, lines[-1]]))


def test_a_copied_line_of_a_segment_is_named(loop_of):
    found = results(loop_of(LineCopied, **ONE))
    assert found["ledger"].status == "fail"
    assert "written twice" in found["ledger"].reason


@pytest.mark.parametrize(("largest", "met"), [(0.0, False), (1e-7, False), (5e-6, False), (2e-5, True)])
def test_rounding_does_not_take_a_later_step_off_its_policy(loop_of, largest, met):
    evidence = evidence_of(loop_of(**ONE))
    (it,) = evidence.iterations
    steps = tuple(replace(s, max_ratio_error=largest if s.step else 0.5) for s in it.trained.steps)
    one = (replace(it, parts={**it.parts, "trained": replace(it.trained, steps=steps)}),)
    assert ratios(replace(evidence, iterations=one)).met is met


class TextsShifted(PlainLoop):
    def text(self, prompt_id):
        return f"row-{int(prompt_id.removeprefix('row-')) + 1}"


class CursorStuck(PlainLoop):
    def row(self, i, group):
        return super().row(i, group - i * self.run.scenario.rollout.prompts)


class DrawSaysLess(TextsShifted):
    def events(self, name, lines):
        return [{k: v for k, v in line.items() if k not in ("prompt_digest", "epoch")} for line in lines]


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (TextsShifted, "prompt group 0 was drawn with another text than the source's of prompt row-0"),
        (CursorStuck, "prompt row-0 was drawn twice in epoch 0: as groups 0 and 4"),
    ],
)
def test_other_prompts_than_those_whose_turn_it_is_are_seen(loop_of, bug, words):
    found = results(loop_of(bug))
    assert red(found) == {"counter"} and words in found["counter"].reason


def test_a_draw_that_says_neither_text_nor_epoch_is_not_compared(loop_of):
    assert "counter" not in red(results(loop_of(DrawSaysLess, **ONE)))


class SyncSaysItAgrees(WeightsNotSynced):
    def sync(self, i, rows, trained):
        return replace(super().sync(i, rows, trained), max_log_prob_error=0.0)


class SyncComparesAnother(PlainLoop):
    def sync(self, i, rows, trained):
        return super().sync(i, [{**rows[0], "rollout_id": 999}], trained)


class SyncStoresNothing(PlainLoop):
    def sync(self, i, rows, trained):
        return replace(super().sync(i, rows, trained), log_probs=None)


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (SyncSaysItAgrees, "says that engine and trainer differ by 0, stored log-probs say"),
        (SyncComparesAnother, "compared (999, 0), which is no sample of this length"),
    ],
)
def test_a_sync_is_not_taken_at_its_word(loop_of, bug, words):
    found = results(loop_of(bug, **ONE))["weight-sync"]
    assert found.status == "fail" and words in found.reason


def test_a_sync_that_stores_no_log_probs_is_taken_at_its_word(loop_of):
    found = results(loop_of(SyncStoresNothing, **ONE))["weight-sync"]
    assert found.status == "pass" and "of 1 only the recorded figures say so" in found.reason
    assert results(loop_of(run_id="stored", **ONE))["weight-sync"].figures["syncs taken at their word"] == 0


def test_stored_log_probs_that_are_gone_are_no_pass(loop_of):
    loop = loop_of(**ONE)
    run, model, prompts = loop.go()
    run.store.remove([key for key in run.store.keys("runs") if key.endswith("sync.parquet")])
    (found,) = run_checks(read_evidence(run, model, prompts, None), only=("weight-sync",))
    assert found.status == "infra" and "sync.parquet" in found.reason


def test_weights_that_were_not_synced_are_seen_by_the_next_iteration_too(loop_of):
    found = results(loop_of(WeightsNotSynced))
    assert found["weight-sync"].status == "fail"
    assert red(found) <= {"weight-sync", "on-policy"}


def test_trailing_rollouts_need_a_reason(loop_of):
    class Trailing(PlainLoop):
        def plan(self, i, rows):
            return replace(super().plan(i, rows), left_out=())

    sections = {**ONE, "training": {"global_batch_size": 6}}
    assert red(results(loop_of(PlainLoop, **sections))) == set()
    found = results(loop_of(Trailing, run_id="lost", **sections))
    assert found["ledger"].status == "fail"
    assert red(found) <= {"ledger", "steps"}


def test_seven_samples_of_four_one_rollout_prompts_carry_no_signal(loop_of):
    known = case("norm-7")
    fan_outs, rewards = numbers_in(known["kind"]), iter(known["input"]["rewards"])
    of_rollout = [[next(rewards) for _ in range(fan_out)] for fan_out in fan_outs]

    class NormSeven(PlainLoop):
        def fan_out(self, index):
            return fan_outs[index]

        def sample(self, i, group, index, sibling):
            made = super().sample(i, group, index, sibling)
            return {**made, "response": made["label"] if of_rollout[index][sibling] else "neither"}

    sections = {"rollout": {"iterations": 1, "rollouts_per_prompt": 1}, "training": {"global_batch_size": 2}}
    evidence = evidence_of(loop_of(NormSeven, **sections))
    verdict = conclude(run_checks(evidence), plumbing_only=False)
    assert [s.reward for s in evidence.iterations[0].rollouts] == known["input"]["rewards"]
    assert [s.advantage for s in evidence.iterations[0].normalised] == known["expect"]["by_rollout"]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    check, _, said = known["expect"]["verdict"].partition(" ")
    assert f"{check}: {said}: rewards differ inside 0 of 4 prompt groups" in verdict.message


def test_a_plumbing_only_scenario_passes_and_says_why_it_can_not_tell(loop_of):
    sections = {"rollout": {"iterations": 1, "rollouts_per_prompt": 1}, "training": {"global_batch_size": 2}}
    checks = list(results(loop_of(PlainLoop, plumbing_only=True, **sections)).values())
    verdict = conclude(checks, plumbing_only=True)
    assert (verdict.outcome, red({c.name: c for c in checks})) == (Outcome.PASS, set())
    assert "plumbing-only" in next(c.reason for c in checks if c.name == "non-vacuity")


def test_everything_masked_is_inconclusive_with_a_finite_loss(loop_of):
    class Masked(PlainLoop):
        def mask(self, index, length):
            return [0] * length

    loop = loop_of(Masked, **ONE)
    found = results(loop)
    assert conclude(list(found.values()), plumbing_only=False).outcome is Outcome.INCONCLUSIVE
    assert "every token is masked" in found["non-vacuity"].reason
    trained = TrainedIteration.from_dict(loop.run.finished("training", 0))
    assert trained.steps[0].loss == 0.0


def test_a_broken_contract_is_a_regression_in_the_hooks_own_words(loop_of):
    fault = ContractViolation("Hook hooks.mine returned None, for prompt group 2.", ids=[2])
    found = results(loop_of(PlainLoop, **ONE), fault)
    assert (found["contract"].status, found["contract"].ids) == ("fail", (2,))
    assert "returned None" in conclude(list(found.values()), plumbing_only=False).message


def test_a_fault_before_the_first_rollout_is_infra_and_nothing_else_runs(loop_of):
    run = loop_of().run
    checks = run_checks(read_evidence(run, None, None, EngineUnavailable("The engine ended.")))
    verdict = conclude(checks, plumbing_only=False)
    assert verdict.outcome is Outcome.INFRA
    assert [c.name for c in checks if c.status != "not run"] == ["EngineUnavailable"]


def test_what_a_run_that_ended_early_lacks_is_said_once(loop_of):
    loop = loop_of()
    loop.iterate = lambda iteration: None
    run, model, prompts = loop.go()
    checks = {c.name: c for c in run_checks(read_evidence(run, model, prompts, EngineUnavailable("The engine ended.")))}
    reason = checks["steps"].reason
    assert reason.startswith("the run ended early: stage reward_normalization of iteration 0 left no record (")
    assert reason.endswith(", nor did 3 after it")


def test_a_loss_that_is_not_finite_is_a_regression_by_its_name(loop_of):
    fault = NumericFailure.of("loss", 0, 1, [4])
    checks = run_checks(read_evidence(loop_of().run, None, None, fault))
    verdict = conclude(checks, plumbing_only=False)
    assert verdict.outcome is Outcome.REGRESSION
    assert [c.name for c in checks if c.status == "fail"] == ["NumericFailure"]


def test_too_few_rollouts_for_a_step_are_inconclusive(loop_of):
    fault = NoFullStep("3 rollouts, 4 asked for one optimizer step")
    checks = run_checks(read_evidence(loop_of().run, None, None, fault))
    assert [(c.name, c.status) for c in checks if c.status != "not run"] == [("NoFullStep", "inconclusive")]
    assert conclude(checks, plumbing_only=False).outcome is Outcome.INCONCLUSIVE


def test_without_a_groups_baseline_rewards_may_be_equal_inside_groups(loop_of):
    raw = {"normalization": {"reward_post_process": "hooks.normalize.identity"}}
    evidence = evidence_of(loop_of(rollout={"rollouts_per_prompt": 1, "prompts": 16}, **raw))
    assert mixed_groups(evidence).met and not mixed_groups(evidence).figures["mixed groups"]


def test_after_a_fault_the_finished_iterations_are_looked_at(loop_of):
    class EndsEarly(PlainLoop):
        def iterate(self, i):
            if i == 0:
                super().iterate(i)

    found = results(loop_of(EndsEarly), EngineUnavailable("The engine ended."))
    assert found["counter"].status == "pass"
    assert "iteration 0 only" in found["counter"].reason
    assert red(found) == {"EngineUnavailable"}


def test_a_missing_iteration_without_a_fault_is_never_a_pass(loop_of):
    class EndsEarly(PlainLoop):
        def iterate(self, i):
            if i == 0:
                super().iterate(i)

    checks = list(results(loop_of(EndsEarly)).values())
    verdict = conclude(checks, plumbing_only=False)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "did not run: counter, ledger, non-vacuity, loss-oracle" in verdict.message


@pytest.mark.parametrize(("part", "checks"), [("ledger", {"counter", "ledger", "identity", "rewards"})])
def test_a_missing_part_is_infra_for_the_checks_that_need_it(loop_of, tmp_path, part, checks):
    loop = loop_of(PlainLoop, **ONE)
    run, model, prompts = loop.go()
    next((tmp_path / "store").rglob(f"{part}/*training*")).unlink()
    found = {r.name: r for r in run_checks(read_evidence(run, model, prompts, None))}
    assert {n for n, r in found.items() if r.status == "infra"} == checks
    assert conclude(list(found.values()), plumbing_only=False).outcome is Outcome.INFRA


def test_without_a_published_gradient_the_oracle_did_not_run(loop_of):
    class NoGradient(PlainLoop):
        def step(self, i, step, rows, old, *, publish):
            return super().step(i, step, rows, old, publish=False)

    checks = list(results(loop_of(NoGradient, **ONE)).values())
    verdict = conclude(checks, plumbing_only=False)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "did not run: loss-oracle" in verdict.message
