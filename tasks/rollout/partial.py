"""Rollouts that were aborted in the middle and go on in a later iteration (partial rollouts)."""

import copy
from collections.abc import Sequence

from hooks.sample import Sample, Status


def to_continue(group: Sequence[Sample | list[Sample]]) -> list[list[Sample]]:
    """The rollouts of a prompt group that have an aborted sibling, as lists of siblings with all their tokens."""
    rollouts = [item if isinstance(item, list) else [item] for item in group]
    return [siblings for siblings in rollouts if any(s.status is Status.ABORTED for s in siblings)]


def resumed(sample: Sample, *, mask_offpolicy: bool) -> Sample:
    """A copy that generation can go on from.

    Args:
        mask_offpolicy: take the tokens so far, which older weights generated, out of the loss.

    Example: 5 old tokens, mask_offpolicy, then 3 new ones -> mask 0 0 0 0 0 1 1 1
    """
    copied = copy.deepcopy(sample)
    copied.status = Status.PENDING
    if mask_offpolicy:
        copied.loss_mask = [0] * copied.response_length
    return copied
