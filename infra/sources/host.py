"""What a source needs to know of this host."""

from dataclasses import dataclass
from pathlib import Path


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
