"""Reward hooks, one grader a file: `async fn(args, sample) -> float | dict`, by dotted path.

Each hook is a thin shell over the pure `grade(response, label, metadata)` of `grade_<name>.py`, which gives the same
result in any thread, process or Ray actor. Symbolic comparison runs in a worker process with a time limit, set by
`args.hook_options`: `seconds_per_answer` (default 5), `grading_processes` (default 1). Nothing of the pipeline is
imported, so the same paths work as slime's `--custom-rm-path`.

Example:
    rollout:
      reward: hooks.rewards.deepscaler
      hook_options: {seconds_per_answer: 5}
"""

from typing import Any

GRADERS = ("exact_match", "deepscaler", "math", "dapo", "f1", "gpqa", "math_verify")
"""Graders that are functions of the answer alone; `remote` asks a service."""


async def exact_match(args: Any, sample: Any) -> float:
    """1 where the answer is the label, see `grade_exact_match`; option `answer`: whole, first_line, last_number."""
    return await _score("exact_match", args, sample)


async def deepscaler(args: Any, sample: Any) -> float:
    """1 where the last boxed expression behind the thinking equals the label, see `grade_deepscaler`."""
    return await _score("deepscaler", args, sample)


async def math(args: Any, sample: Any) -> float:
    """1 where the last boxed expression equals the label, see `grade_math`."""
    return await _score("math", args, sample)


async def dapo(args: Any, sample: Any) -> dict[str, Any]:
    """`{"score": 1 or -1, "acc": bool, "pred": text}` of the last `Answer:` line, see `grade_dapo`."""
    return await _score("dapo", args, sample)


async def f1(args: Any, sample: Any) -> float:
    """Token F1 of SQuAD between response and label, see `grade_f1`."""
    return await _score("f1", args, sample)


async def gpqa(args: Any, sample: Any) -> float:
    """1 where the chosen letter is the right one, see `grade_gpqa`."""
    return await _score("gpqa", args, sample)


async def math_verify(args: Any, sample: Any) -> float:
    """1 where math-verify finds response and label equal, see `grade_math_verify`; the default for open answers."""
    return await _score("math_verify", args, sample)


async def remote(args: Any, sample: Any) -> Any:
    """What the service at `args.rm_url` answers, see `grade_remote`."""
    from hooks.rewards.grade_remote import ask

    return await ask(args, sample)


async def _score(grader: str, args: Any, sample: Any) -> Any:
    from hooks.rewards.score import score

    return await score(grader, args, sample)
