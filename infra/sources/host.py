"""What a source needs to know of this host."""

from dataclasses import dataclass
from pathlib import Path

from infra.settings import settings


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where downloads go and how the hub is reached.

    Args:
        cache: folder for everything that is downloaded or converted.
        endpoint: the hub's address, None for the public one.
        offline: use only what is in the cache.
    """

    cache: Path
    endpoint: str | None = None
    offline: bool = False


def this_host() -> Host:
    """Cache folder and hub as the settings say."""
    now = settings()
    return Host(cache=now.cache_dir, endpoint=now.hf_endpoint, offline=now.hf_offline)
