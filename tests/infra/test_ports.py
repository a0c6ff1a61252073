"""Ports that nobody else is given meanwhile."""

import socket

import pytest

from infra import ports
from infra.ports import free_port


def test_ports_are_free_and_none_that_the_kernel_gives_away():
    first = int(ports.RANGE_FILE.read_text().split()[0])
    for port in (free_port() for _ in range(50)):
        assert ports.LOWEST <= port < first
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_a_taken_port_is_not_given(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        only = taken.getsockname()[1]
        monkeypatch.setattr(ports, "LOWEST", only)
        monkeypatch.setattr(ports, "_first_of_the_kernel", lambda: only + 1)
        with pytest.raises(OSError, match=f"no free port on 127.0.0.1 in .* from {only}"):
            free_port()


def test_a_machine_that_gives_everything_away_still_has_ports(monkeypatch):
    monkeypatch.setattr(ports, "_first_of_the_kernel", lambda: 1024)
    assert free_port() >= 1024
