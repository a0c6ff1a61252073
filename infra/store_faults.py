"""What went wrong at a remote store: whether waiting helps, and the same in words."""

import errno
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError

Result = TypeVar("Result")

SERVER_ERROR = 500
THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestTimeout",
    "TooManyRequests",
}
PASSING = (BotoConnectionError, HTTPClientError, ConnectionError, TimeoutError)
LONGEST_PAUSE_SECONDS = 8.0
PRECONDITION = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
NOT_ACCEPTED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
CHECK_CREDENTIALS = "Set the credentials of the store (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile)."


def patiently(work: Callable[[], Result], seconds: float) -> Result:
    """The result of `work`, tried again with growing pauses while the store is away, overloaded or errs.

    Raises:
        Exception: what `work` raised, at once where waiting does not help, else when `seconds` are over.
    """
    deadline, pause = time.monotonic() + seconds, 0.5
    while True:
        try:
            return work()
        except Exception as error:  # a client library raises classes of its own; only some of them pass
            if not passes(error) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def passes(error: BaseException) -> bool:
    """Whether the same request may succeed later: no connection, an error of the server's own, or too many requests."""
    for cause in _chain(error):
        if isinstance(cause, ClientError):
            status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return (status >= SERVER_ERROR and status != 501) or _code(cause) in THROTTLED
        if isinstance(cause, PASSING):
            return True
    return False


def maybe_there(error: BaseException) -> bool:
    """Whether a refused create may mean that the object exists. Servers say so in different words, and a request that
    was answered too late, or not at all, may have created it."""
    codes = {_code(cause) for cause in _chain(error) if isinstance(cause, ClientError)}
    return isinstance(error, FileExistsError) or bool(codes & PRECONDITION) or passes(error)


def in_words(uri: str, verb: str, key: str, error: BaseException) -> tuple[str, str]:
    """What could not be done, and what to do now. Nothing of the credentials is in it.

    Args:
        verb: what was tried, as `write` or `look up`.
    """
    bucket = uri.removeprefix("s3://").partition("/")[0]
    for cause in _chain(error):
        if isinstance(cause, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)):
            return f"This process has no credentials for the artifact store {uri}.", CHECK_CREDENTIALS
        if isinstance(cause, ClientError):
            code = _code(cause)
            if code in NOT_ACCEPTED:
                return (
                    f"The artifact store {uri} does not accept this process's credentials ({code}).",
                    CHECK_CREDENTIALS,
                )
            if code == "RequestTimeTooSkewed":
                return (
                    f"The clocks of this host and of the artifact store {uri} differ too much to {verb} {key}.",
                    "Set this host's clock.",
                )
            if code == "NoSuchBucket":
                return f"There is no bucket {bucket} for the artifact store {uri}.", "Create it, or correct the name."
            if code in {"AccessDenied", "403", "AllAccessDisabled"}:
                return (
                    f"The artifact store {uri} does not let this process {verb} {key} ({code}).",
                    "Check the credentials, and that they may read, list, write and delete there.",
                )
        if isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}:
            return (
                f"The artifact store {uri} has no room left to {verb} {key}.",
                "Free some; `fanline gc` shows what could go.",
            )
        if isinstance(cause, (BotoConnectionError, ConnectionError)):
            return f"The artifact store {uri} does not answer: {cause}.", "Start it, or check its address."
    return (
        f"The artifact store {uri} can not {verb} {key}: {type(error).__name__}: {error}.",
        "Check that it exists, has room, and that this user's credentials may read and write there.",
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
