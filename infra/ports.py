"""Ports of our own on the loopback address."""

import socket


def free_port() -> int:
    """A TCP port on 127.0.0.1 that is free now. Another process may still take it first: callers retry their start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
