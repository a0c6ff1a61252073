"""Numbers that are not finite: a regression of the stack, never retried."""

from collections.abc import Sequence

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
