"""The product in one page: generate fanned-out rollouts, train on them, and say whether the stack still does it right.

     download ─▶ ┌───────── each iteration ─────────┐ ─▶ replay ─▶ counter assertion ─▶ report ─▶ verdict
     model, data │ rollout ─▶ reward normalization  │    by other    and the other checks
                 │    ▲               ▼             │    processes
                 │ weight sync ◀── training         │
                 │    └──▶ evaluation, where due    │
                 └──────────────────────────────────┘
                 GPUs are leased from the first rollout to the replay

Every stage leaves a record in the store when it has finished; a rerun of the same flow run takes finished stages from
there. Faults do not end the flow: they become checks, so that a run always ends in a verdict and a report.
"""

from prefect import flow
from prefect.client.schemas.objects import State

from flows.verdict_state import as_state, ends_in_words
from infra.ended_run import mark_ended
from infra.faults import recorded_faults
from infra.notices.tell import tell_cause
from infra.open_run import open_run
from infra.pool.lease import gpu_lease
from infra.reference_stack import reference_stack
from infra.scenario.model import Scenario
from infra.stopwatch import Stopwatch
from tasks.counter_assertion.task import assert_counters
from tasks.download.task import download_model, download_prompts
from tasks.report.task import publish_report
from tasks.reward_normalization.task import normalize_rewards
from tasks.rollout.task import evaluate, generate_rollouts
from tasks.training.task import replay_training, sync_weights, train_iteration


@flow(
    name="fanout-regression",
    flow_run_name="{scenario.name} · seed {scenario.seed}",
    persist_result=False,
    on_cancellation=[mark_ended],
    on_crashed=[mark_ended],
)
@ends_in_words
def fanout_regression(scenario: Scenario, store: str | None = None, resume_from: str | None = None) -> State:
    """Train a few iterations on fanned-out rollouts and say whether the stack still does it right.

    Args:
        scenario: everything the run depends on.
        store: artifact store, a folder or s3://bucket/prefix; by default the one of this deployment.
        resume_from: id of an unfinished run of the same scenario and code to go on with, instead of a new run.
    """
    run = open_run(scenario, store, resume_from)
    timer, faults = Stopwatch(), recorded_faults()
    model = prompts = None
    with faults:
        with timer("download"):
            model = download_model(run)
            prompts = download_prompts(run, model)
        with gpu_lease(run, timer), reference_stack(run, model, timer) as (engine, trainer):
            for iteration in run.unfinished_iterations():
                with timer("rollout"):
                    rollouts = generate_rollouts(run, model, prompts, engine, iteration)
                with timer("reward_normalization"):
                    rollouts = normalize_rewards(run, rollouts)
                with timer("training"):
                    trained = train_iteration(run, model, rollouts, trainer)
                with timer("weight_sync"):
                    sync_weights(run, rollouts, trained, trainer, engine)
                if scenario.evaluates_after(iteration):
                    with timer("evaluation"):
                        evaluate(run, model, prompts, engine, iteration)
            with timer("replay"):
                replay_training(run, model, engine, trainer)
    with timer("counter_assertion"):
        verdict = assert_counters(run, model, prompts, faults.first)
    publish_report(run, verdict, timer.seconds)
    tell_cause(run, verdict)
    return as_state(run, verdict, faults.first)
