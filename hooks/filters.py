"""Filters: which prompt groups and which samples are worth training on. They work on slime's samples and groups too."""

from collections.abc import Iterable, Iterator
from typing import Any

from hooks.sample import rollout_of


def mixed_rewards(args: Any, samples: Any, **_: Any) -> bool:
    """Dynamic filter: keep a prompt group whose rollouts have different rewards.

    Where all are equal every advantage is 0 (DAPO, arXiv:2503.14476 section 3.2). Unlike DAPO nothing is drawn again
    for a group that goes: the iteration takes fewer steps.

    Args:
        samples: of one prompt group; lists of siblings in it are taken as their members.
    """
    return len({sample.get_reward_value(args) for sample in _flat(samples)}) > 1


def drop_truncated(args: Any, samples: Any) -> None:
    """Sample filter: remove rollouts of which any sibling ran out of tokens (overlong filtering of DAPO, section 3.4).

    All siblings of a rollout go: they share a reward that a cut answer earned. A sample without `rollout_id` is a
    rollout of its own.
    """
    everything = list(_flat(samples))
    cut = {rollout_of(sample) for sample in everything if sample.status.value == "truncated"}
    for sample in everything:
        if rollout_of(sample) in cut:
            sample.remove_sample = True


def _flat(samples: Iterable[Any]) -> Iterator[Any]:
    """Samples of a list in which groups and siblings may be lists: slime's filters get a list of groups."""
    for item in samples:
        if isinstance(item, list):
            yield from _flat(item)
        else:
            yield item
