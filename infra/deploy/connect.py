"""Which Prefect server the commands mean, and a client of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx

from infra.errors import ConfigurationError, InfraFault
from infra.settings import settings
from infra.up.state import running

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient  # imported late: it takes a second


def api_url() -> str:
    """The API that the environment or Prefect's profile names, else the one of `fanline up` on this machine.

    Raises:
        ConfigurationError: there is none.
    """
    from prefect.settings import get_current_settings

    state = running(settings().home)
    url = get_current_settings().api.url or (state.api_url if state else None)
    if url is None:
        raise ConfigurationError(
            "No Prefect server is named.",
            next_step="`fanline up` starts one here; or set PREFECT_API_URL to the one that you use.",
        )
    return url


@contextlib.contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """A client of that server; everything of Prefect inside the block talks to it too.

    Raises:
        ConfigurationError: no server is named.
        InfraFault: it does not answer.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url = api_url()
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        try:
            client.hello()
        except httpx.HTTPError as cause:
            raise InfraFault(
                f"The Prefect API {url} does not answer: {cause}.",
                next_step="Start it, or name another one in PREFECT_API_URL.",
                ids=[url],
            ) from cause
        yield client
