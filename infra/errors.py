"""The few ways in which a run can end without a verdict of its checks, each with its exit code."""

from collections.abc import Sequence


class FanlineError(Exception):
    """An error a person can act on.

    Args:
        message: what is wrong, naming the ids it is about.
        next_step: what to do now, as a sentence.
        ids: the ids (prompt group, rollout, index, check, file) that the error is about.
    """

    exit_code = 3
    verdict = "INFRA"

    def __init__(self, message: str, *, next_step: str = "", ids: Sequence[object] = ()):
        super().__init__(message)
        self.message, self.next_step, self.ids = message, next_step, tuple(ids)

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".strip()


class ConfigurationError(FanlineError):
    """Wrong usage, scenario or source: said before anything is generated."""

    exit_code = 2
    verdict = "CONFIGURATION"


class ContractViolation(FanlineError):
    """A hook returned what the contract refuses (check `contract`, verdict REGRESSION)."""

    exit_code = 1
    verdict = "REGRESSION"


class HookFailed(ContractViolation):
    """A hook raised, also after its retries."""


class InfraFault(FanlineError):
    """A service, process, device or store failed: the run says nothing about the stack under test."""


class EngineUnavailable(InfraFault):
    """The generation engine does not answer or its process ended."""


class RequestRefused(FanlineError):
    """The engine answers and refuses this request, for instance a prompt longer than the model's context."""


class TrainerUnavailable(InfraFault):
    """A trainer rank or the Ray cluster went away."""


class StoreUnavailable(InfraFault):
    """The artifact store refuses to read or write."""


class DownloadFailed(InfraFault):
    """A model or data set could not be fetched, or what landed is not what was published."""


class NotInCache(DownloadFailed):
    """This host is told to stay offline and has no copy: trying again can not help."""


class LedgerUnavailable(InfraFault):
    """The ledger can not be written or a part of it is missing: without it no run may be called green."""
