"""Numbers that no right stack has: a regression, never retried."""

from collections.abc import Mapping, Sequence

from infra.errors import FanlineError


class NumericFailure(FanlineError):
    """A loss or gradient is not finite. The optimizer did not take the step."""

    exit_code = 1
    verdict = "REGRESSION"

    @classmethod
    def of(cls, what: str, iteration: int, step: int, rollout_ids: Sequence[int]) -> "NumericFailure":
        named = ", ".join(map(str, rollout_ids))
        return cls(
            f"The {what} of iteration {iteration}, step {step} is not finite (rollouts {named}).",
            next_step="The step was not taken. Look at these rollouts' log-probs and advantages; do not retry.",
            ids=[iteration, step, *rollout_ids],
        )


class ReplicasDiffer(FanlineError):
    """Data-parallel ranks hold different weights after a step: it was not the same step for all."""

    exit_code = 1
    verdict = "REGRESSION"

    @classmethod
    def of(cls, iteration: int, step: int, digests: Mapping[int, str]) -> "ReplicasDiffer":
        """Args: digests: of the weights, by rank."""
        named = ", ".join(f"rank {rank} {digest[:12]}" for rank, digest in digests.items())
        return cls(
            f"After step {step} of iteration {iteration} the ranks hold different weights: {named}.",
            next_step="Look at the gradient reduction and at how the optimizer's shards are gathered; do not retry.",
            ids=[iteration, step, *digests],
        )
