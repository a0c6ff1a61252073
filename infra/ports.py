"""Ports of our own on the loopback address."""

import random
import socket
from pathlib import Path

RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, TRIES = 20_000, 100
_random = random.SystemRandom()  # two processes with one seed must not choose the same port


def free_port() -> int:
    """A TCP port on 127.0.0.1 that is free now.

    It lies below the range from which the kernel serves outgoing connections and `bind(0)`: between this call and the
    start of the server that gets it, only another server that chose the same number could take it.
    """
    below = _first_of_the_kernel()
    for _ in range(TRIES):
        port = _random.randrange(LOWEST, below) if below > LOWEST else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError(f"no free port on 127.0.0.1 in {TRIES} tries from {LOWEST} to {below}")


def _first_of_the_kernel() -> int:
    try:
        return int(RANGE_FILE.read_text().split()[0])
    except OSError:
        return 0
