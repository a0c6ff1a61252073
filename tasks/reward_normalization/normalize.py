"""Apply the scenario's reward post-process hook to stored rollouts, and refuse what is not a finite number each."""

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hooks.sample import Sample, Status
from infra.errors import ContractViolation, HookFailed

PostProcess = Callable[[Any, Sequence[Sample]], tuple[Sequence[float], Sequence[float]]]


def normalised_advantages(table: pa.Table, hook: PostProcess, path: str, args: Any) -> NDArray[np.float64]:
    """The advantage of every stored sample.

    Args:
        table: [samples] of the rollouts schema, with raw rewards.
        hook: fn(args, samples) -> (raw_rewards, normalised_rewards), both in the order of `samples`.
        path: the hook's dotted path, for refusals.
        args: the scenario as hooks see it.
    Returns:
        [samples] float64.
    Raises:
        ContractViolation: the hook gave another number of values, or a value that is not finite; names the ids.
        HookFailed: the hook raised.
    """
    samples = samples_of(table)
    order = [(s.rollout_id, s.index) for s in samples]
    try:
        answer = hook(args, samples)
    except Exception as cause:  # user code: whatever it raises is told with its path
        ids = vars(cause).get("ids", ())
        raise HookFailed(f"Hook {path} raised {type(cause).__name__}: {cause}", ids=[path, *ids]) from cause
    if [(s.rollout_id, s.index) for s in samples] != order:
        raise ContractViolation(f"Hook {path} reordered the samples or changed their ids.", ids=[path])
    return _checked(answer, samples, path)


def samples_of(table: pa.Table) -> list[Sample]:
    """Samples as hooks know them, in the order of the table; log-probs are not among their fields here."""
    names = ("group_index", "index", "rollout_id", "prompt", "response", "response_length", "label", "tokens")
    columns = {name: table[name].to_pylist() for name in (*names, "loss_mask", "reward", "remove_sample")}
    status, metadata = table["status"].to_pylist(), table["metadata"].to_pylist()
    return [
        Sample(
            **{name: values[k] for name, values in columns.items()},
            status=Status(status[k]),
            metadata=json.loads(metadata[k]),
        )
        for k in range(table.num_rows)
    ]


def _checked(answer: Any, samples: Sequence[Sample], path: str) -> NDArray[np.float64]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ContractViolation(
            f"Hook {path} returned {type(answer).__name__}.",
            next_step="It has to return (raw_rewards, normalised_rewards).",
            ids=[path],
        )
    _numbers(answer[0], "raw rewards", samples, path)
    advantages = _numbers(answer[1], "normalised rewards", samples, path)
    bad = sorted({samples[k].rollout_id for k in np.flatnonzero(~np.isfinite(advantages)).tolist()}, key=str)
    if bad:
        raise ContractViolation(
            f"Hook {path} gave advantages that are not finite in rollouts {', '.join(map(str, bad))}.",
            ids=[path, *bad],
        )
    return advantages


def _numbers(values: Any, name: str, samples: Sequence[Sample], path: str) -> NDArray[np.float64]:
    """[samples] the values as they are, None as nan; what is not one number a sample is refused."""
    numbers = _as_floats(values)
    if numbers is None:
        raise ContractViolation(
            f"Hook {path} returned a {type(values).__name__} ({values!r:.60}) as {name}.",
            next_step="It has to return a list of numbers, one of each sample, in the order of the samples.",
            ids=[path, *dict.fromkeys(s.rollout_id for s in samples)],
        )
    if len(numbers) != len(samples):
        raise ContractViolation(
            f"Hook {path} returned {len(numbers)} {name} for {len(samples)} samples.",
            next_step="It has to return one of each, in the order of the samples.",
            ids=[path],
        )
    return numbers


def _as_floats(values: Any) -> NDArray[np.float64] | None:
    if isinstance(values, str | bytes | Mapping | AbstractSet):
        return None
    try:
        given = np.array([np.nan if v is None else v for v in values])
        return given.astype(np.float64) if given.ndim == 1 and given.dtype.kind in "biufO" else None
    except Exception:  # a value of a hook's: whatever it raises where a number is asked for, it is none
        return None
