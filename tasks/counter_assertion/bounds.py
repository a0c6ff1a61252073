"""How far apart two right computations may be, by the type that the trainer's parameters have, and why."""

from dataclasses import dataclass, replace

from infra.scenario.model import Checks


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Largest differences that are rounding.

    Args:
        gradient: relative, of the unclipped gradient, per parameter group.
        log_prob: of one token, engine against trainer.
        mean_log_prob: mean over all tokens, engine against trainer.
        term: of a loss term, relative to the sum of the absolute token losses in it.
        first_loss: of a first step's loss, relative to the sum of the absolute terms over the rollouts of a step: the
            loss itself may be 0 by construction.
        ratio: of the largest ratio of a later step, relative.
        edge: of a later step's ratios, relative: a token so near to a clip may be on either side of it, and its whole
            gradient is there or not. A step that has one is not compared.
        rounding_factor: where a gradient is off by more than `gradient`, the reference is computed in the trainer's
            type as well: how far that is from float64 is what rounding does to this very batch, and a computation that
            adds in another order may be off by so many times as much. In a step whose tokens are nearly all clipped or
            certain, what is left of the gradient is differences of numbers near 1.
        rounding_cap: most that is ever called rounding.
    """

    gradient: float
    log_prob: float
    mean_log_prob: float
    term: float
    first_loss: float
    ratio: float
    edge: float
    rounding_factor: float
    rounding_cap: float


# float32: 24 bits of mantissa, 6e-8 an operation. Seen in whole runs: gradients up to 5.7e-6, log-probs to 1.1e-5, and
# 3e-7 in the mean. bfloat16: 8 bits, 4e-3 an operation; sums are float32. Seen on one H200: gradients up to 0.075, or
# 0.008 between shapes, log-probs up to 0.11, and 0.012 in the mean (tests/gpu_reports). The least fault of the drill is
# off by 0.38: the cap is a hundredth of that in float32, and well under half of it in bfloat16.
BY_DTYPE = {
    "float32": Bounds(
        gradient=1e-5,
        log_prob=1e-4,
        mean_log_prob=2e-5,
        term=1e-5,
        first_loss=1e-6,
        ratio=1e-4,
        edge=1e-5,
        rounding_factor=10,
        rounding_cap=3e-3,
    ),
    "bfloat16": Bounds(
        gradient=5e-2,
        log_prob=0.25,
        mean_log_prob=3e-2,
        term=5e-2,
        first_loss=5e-2,
        ratio=0.25,
        edge=0.1,
        rounding_factor=3,
        rounding_cap=0.15,
    ),
}


def bounds_of(checks: Checks, dtype: str) -> Bounds:
    """The bounds of a type, with what the scenario says instead.

    Args:
        dtype: of the trainer's parameters, as its record says; one that is not known here has those of float32.
    """
    bounds = BY_DTYPE.get(dtype, BY_DTYPE["float32"])
    if checks.gradient_tolerance is not None:
        bounds = replace(bounds, gradient=checks.gradient_tolerance)
    if checks.log_prob_tolerance is not None:
        bounds = replace(bounds, log_prob=checks.log_prob_tolerance, mean_log_prob=checks.log_prob_tolerance)
    return bounds
