"""The hooks as a run calls them: by dotted path, in threads and processes, in bounded time, by the sample's id."""

import asyncio
import importlib
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

import hooks.rewards
from hooks.rewards.pool import AnswerTimedOut, GraderFailed, WorkerPool
from hooks.rewards.score import grader_module
from hooks.sample import Sample
from tests.cases_of import case

CASES, EVERY_GRADER = case("deepscaler"), case("every grader")
SYMBOLIC = ("</think> \\boxed{2\\sqrt{2}}", "\\sqrt{8}")
FOREVER = ("$10^{10^{10^{10}}}$", "5^{5^{5^{5^{5}}}}")
NO_ARGS = SimpleNamespace()


def sample(response, label, **fields):
    return Sample(group_index=1, rollout_id=7, index=3, response=response, label=label, **fields)


@pytest.mark.parametrize("name", [*hooks.rewards.GRADERS, "remote"])
def test_each_dotted_path_is_an_async_function(name):
    module, _, attribute = f"hooks.rewards.{name}".rpartition(".")
    assert asyncio.iscoroutinefunction(getattr(importlib.import_module(module), attribute))


@pytest.mark.parametrize("name", hooks.rewards.GRADERS)
def test_a_grader_needs_nothing_but_the_sample(name):
    right = sample("Answer: 5" if name == "dapo" else "</think>\\boxed{5}" if "exact" not in name else "5", "5")
    if name in ("f1", "gpqa"):
        right = sample("answer: A", "answer: A" if name == "f1" else "A")
    reward = asyncio.run(getattr(hooks.rewards, name)(NO_ARGS, right))
    assert (reward["score"] if name == "dapo" else reward) == 1


def test_hooks_import_nothing_of_the_pipeline_and_nothing_heavy():
    code = (
        "import sys, hooks.rewards, hooks.rewards.score\n"
        "import hooks.rewards.grade_deepscaler, hooks.rewards.grade_math_verify\n"
        "bad = {'infra', 'tasks', 'flows', 'sympy', 'math_verify', 'torch', 'aiohttp'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0


def test_a_worker_thread_gives_what_the_main_thread_gives():
    assert EVERY_GRADER["in a worker thread"] == "same result as in the main thread"
    answers = [(r, t) for r, t in (*CASES["one"], *CASES["zero"], SYMBOLIC) if t]
    whole = [(f"Answer: {r}", t) for r, t in answers if t.isdecimal()]  # dapo refuses other labels
    graded = {name: whole if name == "dapo" else answers for name in hooks.rewards.GRADERS}
    labelled = [(grader_module(name), r, t) for name, pairs in graded.items() for r, t in pairs]
    in_thread = []
    thread = threading.Thread(target=lambda: in_thread.extend(g.grade(r, t, {}) for g, r, t in labelled))
    thread.start()
    thread.join()
    assert in_thread == [g.grade(r, t, {}) for g, r, t in labelled]


def test_a_worker_process_gives_what_the_main_thread_gives():
    async def graded(pool):
        return await asyncio.gather(
            *(pool.grade(i, g, r, t, {}) for i, (g, (r, t)) in enumerate(jobs)), return_exceptions=True
        )

    jobs = [(g, case) for g in hooks.rewards.GRADERS for case in (*CASES["one"], SYMBOLIC) if g != "dapo"]
    with WorkerPool(processes=2, seconds_per_answer=60) as pool:
        rewards = asyncio.run(graded(pool))
    assert rewards == [grader_module(g).grade(r, t, {}) for g, (r, t) in jobs]


def test_an_answer_that_takes_for_ever_is_reported_by_id_and_the_rest_is_graded():
    async def graded(pool):
        before = pool.grade("before", "math_verify", "$\\frac{2}{4}$", "\\frac{1}{2}", {})
        hung = pool.grade("rollout 9", "math_verify", *FOREVER, {})
        after = pool.grade("after", "math_verify", "$\\frac{2}{5}$", "\\frac{1}{2}", {})
        return await asyncio.gather(before, hung, after, return_exceptions=True)

    with WorkerPool(processes=1, seconds_per_answer=2.0) as pool:
        before, hung, after = asyncio.run(graded(pool))
    assert (before, after) == (1.0, 0.0)
    assert isinstance(hung, AnswerTimedOut)
    assert "rollout 9" in str(hung)


@pytest.mark.parametrize("name", hooks.rewards.GRADERS)
def test_an_answer_that_takes_for_ever_is_reported_by_the_samples_id_or_settled_at_once(name):
    assert EVERY_GRADER["an answer that takes for ever to simplify"] == "bounded time, reported with its id"
    args = SimpleNamespace(hook_options={"seconds_per_answer": 1.0})
    response, label = FOREVER
    hung = sample(f"</think> \\boxed{{{response}}}\nAnswer: {response}", "5" if name == "dapo" else label)
    asked = asyncio.wait_for(getattr(hooks.rewards, name)(args, hung), 60)
    if name == "math_verify":
        with pytest.raises(AnswerTimedOut, match="rollout 7"):
            asyncio.run(asked)
    else:
        reward = asyncio.run(asked)
        assert reward == ({"score": -1.0, "acc": False, "pred": reward["pred"]} if name == "dapo" else 0.0)


@pytest.mark.parametrize("name", hooks.rewards.GRADERS)
def test_a_missing_label_is_an_error_with_the_samples_id(name):
    with pytest.raises(GraderFailed, match="group 1, rollout 7, index 3"):
        asyncio.run(getattr(hooks.rewards, name)(NO_ARGS, sample("5", None)))


def test_a_grader_that_raises_is_an_error_with_the_samples_id():
    with pytest.raises(GraderFailed, match=r"rollout 7.*must be an integer"):
        asyncio.run(hooks.rewards.dapo(NO_ARGS, sample("Answer: 5", "a half")))


def test_a_worker_that_dies_is_an_error_with_the_answers_id():
    with WorkerPool(seconds_per_answer=60, memory_mib=16) as pool, pytest.raises(GraderFailed, match="answer of 12"):
        asyncio.run(pool.grade(12, "math_verify", "$\\frac{2}{4}$", "1/2", {}))


async def asked(answers, options):
    """The reward that a loopback service which gives these answers in turn makes of a sample, and what it was asked."""
    bodies = []

    async def reward(request):
        bodies.append(await request.json())
        status, body = answers[min(len(bodies), len(answers)) - 1]
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_post("/reward", reward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    args = SimpleNamespace(
        rm_url=f"http://127.0.0.1:{port}/reward", hook_options={"remote_pause_seconds": 0.01, **options}
    )
    try:
        return await hooks.rewards.remote(args, sample("r", "l", prompt="p")), bodies
    finally:
        await runner.cleanup()


def test_remote_asks_again_after_a_server_error():
    reward, bodies = asyncio.run(asked([(503, {}), (500, {}), (200, 0.25)], {}))
    assert reward == 0.25
    assert bodies == [{"prompt": "p", "response": "r", "label": "l"}] * 3


def test_remote_may_answer_an_object():
    assert asyncio.run(asked([(200, {"score": 1, "why": "it is"})], {}))[0] == {"score": 1, "why": "it is"}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([(500, {})], "tried 2 times"),
        ([(404, {})], "answered 404"),
        ([(200, "good")], "neither"),
        ([(200, None)], "neither"),
    ],
)
def test_remote_that_never_answers_is_an_error_with_the_samples_id(answers, said):
    with pytest.raises(GraderFailed, match=rf"rollout 7.*{said}"):
        asyncio.run(asked(answers, {"remote_attempts": 2}))


def test_remote_without_an_address_says_what_to_set():
    with pytest.raises(GraderFailed, match="rm_url"):
        asyncio.run(hooks.rewards.remote(NO_ARGS, sample("r", "l")))


@pytest.mark.trainer
def test_a_ray_actor_gives_what_the_main_thread_gives(ray_cluster):
    import ray

    ray_cluster.connect()

    class Grader:
        def grade(self, grader, response, label):
            from hooks.rewards.pool import WorkerPool

            with WorkerPool(seconds_per_answer=60) as pool:
                pooled = pool.submit("in an actor", grader, response, label, {}).result()
            return importlib.import_module(f"hooks.rewards.grade_{grader}").grade(response, label, {}), pooled

    actor: Any = ray.remote(num_cpus=0)(Grader).remote()
    for grader in ("deepscaler", "math", "math_verify"):
        for response, label in (SYMBOLIC, CASES["one"][0], ("</think> \\boxed{x+1}", "x+2")):
            here = grader_module(grader).grade(response, label, {})
            assert ray.get(actor.grade.remote(grader, response, label)) == (here, here)
    ray.kill(actor)
