"""A verdict as a Prefect state, so that the UI, Retry and automations see the truth."""

import functools
from collections.abc import Callable
from typing import ParamSpec

from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed

from infra.errors import EngineUnavailable, FanlineError, StoreUnavailable, TrainerUnavailable
from infra.records.verdict import Outcome, Verdict
from infra.run import Run

GONE = (EngineUnavailable, TrainerUnavailable, StoreUnavailable)
MESSAGE_CHARACTERS = 2000
Parameters = ParamSpec("Parameters")


def as_state(run: Run, verdict: Verdict, fault: FanlineError | None = None) -> State:
    """Completed for PASS; the verdict is the state's name and the causes its message.

    Args:
        fault: what ended the run early, if anything did. INFRA is Crashed where a process or service was gone, so that
            automations on crashes see it; everything else that is not PASS is Failed.
    """
    message = f"{run.run_id}: {verdict.message}"[:MESSAGE_CHARACTERS]
    return _kind(verdict.outcome, fault)(name=verdict.outcome.name, message=message)


def _kind(outcome: Outcome, fault: FanlineError | None) -> Callable[..., State]:
    if outcome is Outcome.PASS:
        return Completed
    return Crashed if outcome is Outcome.INFRA and isinstance(fault, GONE) else Failed


def ends_in_words(flow: Callable[Parameters, State]) -> Callable[Parameters, State]:
    """Let a flow end in a state that says in words what kept it from a verdict; its name is what the error stands for.

    The error itself is the state's result, for callers in the same process.
    """

    @functools.wraps(flow)
    def told(*args: Parameters.args, **kwargs: Parameters.kwargs) -> State:
        try:
            return flow(*args, **kwargs)
        except FanlineError as error:
            kind = Crashed if isinstance(error, GONE) else Failed
            return kind(name=error.verdict, message=str(error)[:MESSAGE_CHARACTERS], data=error)

    return told
