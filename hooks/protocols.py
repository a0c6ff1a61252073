"""What each kind of hook has to look like. A hook is an ordinary function, named in a scenario by its dotted path.

`args` is a read-only view of the scenario that answers slime's attribute names; `sampling_params` is a copy.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from hooks.sample import Sample


class GenerateHook(Protocol):
    """One execution of one prompt.

    It returns one sample, or the siblings of the rollout as a flat list in which all carry the same `rollout_id`
    (`sample.index` is a good one: it is unique in a run). A keyword `evaluation`, where there is one, says whether the
    result is only measured.

    Example:
        async def twice(args, sample, sampling_params):
            sample.rollout_id = sample.index
            return [await generate(args, copy.deepcopy(sample), sampling_params, call=name) for name in ("a", "b")]
    """

    async def __call__(
        self, args: Any, sample: Sample, sampling_params: dict[str, Any], /
    ) -> Sample | list[Sample]: ...


class RewardHook(Protocol):
    """The reward of one rollout, given its last sibling: a number, or a dict that holds one under `args.reward_key`."""

    async def __call__(self, args: Any, sample: Sample, /) -> float | dict[str, Any]: ...


class BatchRewardHook(Protocol):
    """The rewards of all samples of a prompt group, one each and in their order. The second parameter is `samples`."""

    def __call__(self, args: Any, samples: list[Sample]) -> list[float | dict[str, Any]]: ...


class RewardPostProcess(Protocol):
    """(raw rewards, normalised rewards), both in the order of `samples`."""

    def __call__(self, args: Any, samples: Sequence[Sample], /) -> tuple[list[float], list[float]]: ...


class SampleFilter(Protocol):
    """Sets `remove_sample` on those that shall not be trained; `samples` are all of an iteration, graded.

    A removed sample is stored and its rollout keeps its place in a step; nothing else that a filter does to the samples
    is taken over.
    """

    def __call__(self, args: Any, samples: list[Sample], /) -> None: ...


class FilterDecision(Protocol):
    """slime's answer of a dynamic filter, fine here too."""

    keep: bool
    reason: str | None


class DynamicFilter(Protocol):
    """Whether a prompt group is worth training on, as DAPO's filter of groups with equal rewards.

    A group that is not goes as a whole and counts for no step; nothing is drawn again for it.
    """

    def __call__(self, args: Any, samples: list[Sample], /) -> bool | FilterDecision: ...


class LogHook(Protocol):
    """Figures of an iteration to show beside the pipeline's own; `samples` are those that its filters left."""

    def __call__(self, args: Any, iteration: int, samples: list[Sample], /) -> dict[str, float]: ...


class GenerationContext(Protocol):
    """What stands behind `hooks.stock.generate` while a rollout runs inside the pipeline.

    It appends one generation to `sample` and gives it back. `call` names the generation: seed and token budget hang on
    that name, so that named generations may run side by side. Unnamed ones are numbered in call order.
    """

    async def generate(self, sample: Any, sampling_params: dict[str, Any], call: str | None) -> Any: ...
