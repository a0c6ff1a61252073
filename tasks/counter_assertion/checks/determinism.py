"""The training of one iteration, replayed from the stored rollouts, gives the same weights digest after every step.

Equal to the bit is what is asked for: on the CPU, and on CUDA in deterministic mode, the same kernels add in the same
order whatever process they run in.
"""

from infra.records.verdict import CheckResult
from tasks.counter_assertion.evidence import Evidence, IterationEvidence
from tasks.counter_assertion.findings import Findings

NAME = "determinism"
NEEDS = ()


def check(evidence: Evidence) -> CheckResult:
    """Digests of the replay against those of the run, step by step: the first that differs is where to look."""
    if damaged := [a for a in evidence.missing(("replay", "trained")) if a.damaged]:
        return CheckResult(name=NAME, status="infra", reason=damaged[0].reason)
    replayed = evidence.having("trained", "replay")
    if not replayed:
        return CheckResult(name=NAME, status="not run", reason=_why_not(evidence))
    found = Findings()
    for it in replayed:
        _compare(it, found)
    steps = sum(len(it.trained.steps) for it in replayed)
    which = ", ".join(str(it.iteration) for it in replayed)
    good = f"iteration {which} trained again by other processes: the weights of its {steps} steps are equal to the bit"
    return found.result(NAME, good, {"iterations replayed": len(replayed), "steps": steps})


def _why_not(evidence: Evidence) -> str:
    if not evidence.scenario.checks.determinism:
        return "the scenario says checks.determinism: false"
    return "no iteration was trained again from its stored rollouts"


def _compare(it: IterationEvidence, found: Findings) -> None:
    trained, replay, where = it.trained, it.replay, f"iteration {it.iteration}"
    if "normalised_ref" in it.parts and replay.rollouts.sha256 != it.parts["normalised_ref"].table.sha256:
        found.add(f"the replay of {where} took other rollouts than those on record", it.iteration)
    if replay.plan.sha256 != trained.plan.sha256:
        found.add(f"the replay of {where} took another plan than the one on record", it.iteration)
    if len(replay.step_digests) != len(trained.steps):
        found.add(
            f"the replay of {where} took {len(replay.step_digests)} steps, not {len(trained.steps)}", it.iteration
        )
    for step, digest in zip(trained.steps, replay.step_digests, strict=False):
        if digest != step.weights_digest:
            found.add(
                f"after step {step.step} of {where} the weights are {step.weights_digest[:12]}, those of the replay "
                f"{digest[:12]}",
                it.iteration,
                step.step,
            )
            break  # later steps start from other weights
