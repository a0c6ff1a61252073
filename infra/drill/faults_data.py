"""Replacements in reward normalisation and in the plan of steps and micro-batches. Each is `original -> faulty`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from infra.records.plan import MicroBatch, PlannedSample, Step, TrainingPlan


def one_big_group(original: Any) -> Any:
    """The group key is lost: all rollouts are normalised together."""
    return lambda args, rewards, rollout, group: original(args, rewards, rollout, np.zeros_like(group))


def groups_by_position(original: Any) -> Any:
    """Groups are cut from the list of samples by position, as if each rollout had one sample."""

    def faulty(args: Any, rewards: Any, rollout: Any, group: Any) -> Any:
        position = np.arange(len(group)) // args.n_samples_per_prompt
        mean = np.bincount(position, rewards) / np.bincount(position)
        centred = rewards - mean[position]
        spread = np.sqrt(np.bincount(position, centred**2) / np.maximum(np.bincount(position) - 1, 1))
        return centred / (spread[position] + 1e-6)

    return faulty


def statistics_over_samples(original: Any) -> Any:
    """Mean and std are those of the samples: a rollout with three siblings votes three times."""
    from hooks.normalize import advantages_by_sample

    return lambda args, rewards, rollout, group: advantages_by_sample(rewards, group)


def singleton_keeps_its_reward(original: Any) -> Any:
    """A group of one rollout has mean 0 and std 1: its advantage is its reward."""

    def faulty(votes: Any, group: Any, divide_by_std: bool) -> Any:
        alone = np.bincount(group)[group] == 1
        return np.where(alone, votes, original(votes, group, divide_by_std))

    return faulty


def denominator_per_sample(original: Any) -> Any:
    """Each sample is divided by its own trained tokens, not by those of its rollout."""

    def faulty(mode: Any, trained_tokens: Any, rollout: Any, group: Any, **kwargs: Any) -> Any:
        _, rollouts = original(mode, trained_tokens, rollout, group, **kwargs)
        return 1 / (max(rollouts, 1) * np.maximum(np.asarray(trained_tokens), 1)), rollouts

    return faulty


def batch_counted_in_samples(original: Any) -> Any:
    """The mean divides by the number of samples of the step, not of its rollouts."""

    def faulty(mode: Any, trained_tokens: Any, rollout: Any, group: Any, **kwargs: Any) -> Any:
        weights, rollouts = original(mode, trained_tokens, rollout, group, **kwargs)
        samples = int((np.asarray(trained_tokens) > 0).sum())
        return weights * rollouts / max(samples, 1), rollouts

    return faulty


def token_mean(original: Any) -> Any:
    """Every token of the step weighs the same, long rollouts more than short ones."""
    return lambda mode, *args, **kwargs: original("token", *args, **kwargs)


def sibling_in_the_next_step(original: Any) -> Any:
    """A step ends in the middle of a rollout: its last sibling goes into the next step."""

    def faulty(index: Any, rollout_id: Any, global_batch_size: int) -> Any:
        split = original(index, rollout_id, global_batch_size)
        ids = np.asarray(rollout_id)[split.steps[0]]
        moved = next(k for k in range(len(ids) - 1, -1, -1) if (ids == ids[k]).sum() > 1)
        steps = list(split.steps)
        steps[1] = np.append(steps[1], steps[0][moved])
        steps[0] = np.delete(steps[0], moved)
        return replace(split, steps=tuple(steps))

    return faulty


def denominator_per_micro_batch(original: Any) -> Any:
    """A rollout's denominator counts only its siblings in the same micro-batch."""

    def faulty(table: Any, *args: Any, **kwargs: Any) -> TrainingPlan:
        plan = original(table, *args, **kwargs)
        trained = [sum(mask) for mask in table["loss_mask"].to_pylist()]

        def apart(batch: MicroBatch, step: Step) -> MicroBatch:
            together: dict[int, int] = {}
            for s in batch.samples:
                together[s.rollout_id] = together.get(s.rollout_id, 0) + (0 if s.dummy else trained[s.row])
            weight = {k: 1 / (step.rollouts_in_mean * max(tokens, 1)) for k, tokens in together.items()}
            samples = tuple(s if s.dummy else replace(s, weight=weight[s.rollout_id]) for s in batch.samples)
            return replace(batch, samples=samples)

        return _each_micro_batch(plan, apart)

    return faulty


def trailing_without_a_reason(original: Any) -> Any:
    """Rollouts after the last full step are dropped and nobody is told."""

    def faulty(*args: Any, **kwargs: Any) -> TrainingPlan:
        plan = original(*args, **kwargs)
        return replace(plan, left_out=tuple(o for o in plan.left_out if o.reason != "trailing"))

    return faulty


def padding_is_trained(original: Any) -> Any:
    """The sample that fills up a rank's micro-batches counts like any other."""

    def faulty(*args: Any, **kwargs: Any) -> TrainingPlan:
        plan = original(*args, **kwargs)
        weights = {s.row: s.weight for step in plan.steps for s in _samples(step) if not s.dummy}

        def counted(batch: MicroBatch, step: Step) -> MicroBatch:
            real = tuple(replace(s, dummy=False, weight=weights[s.row]) if s.dummy else s for s in batch.samples)
            return replace(batch, samples=real)

        return _each_micro_batch(plan, counted)

    return faulty


def one_sample_twice(original: Any) -> Any:
    """A sample is in a micro-batch and in the next one too."""

    def faulty(*args: Any, **kwargs: Any) -> TrainingPlan:
        plan = original(*args, **kwargs)
        step = plan.steps[0]
        first, *rest = step.ranks
        again = replace(first[0].samples[0], opens_rollout=False)
        longer = replace(first[-1], samples=(*first[-1].samples, again))
        step = replace(step, ranks=((*first[:-1], longer), *rest))
        return replace(plan, steps=(step, *plan.steps[1:]))

    return faulty


def _each_micro_batch(plan: TrainingPlan, change: Callable[[MicroBatch, Step], MicroBatch]) -> TrainingPlan:
    steps = [replace(s, ranks=tuple(tuple(change(b, s) for b in rank) for rank in s.ranks)) for s in plan.steps]
    return replace(plan, steps=tuple(steps))


def _samples(step: Step) -> Sequence[PlannedSample]:
    return [s for rank in step.ranks for batch in rank for s in batch.samples]
