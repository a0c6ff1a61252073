"""Nodes of a Ray cluster that was joined: which ones a label selects, and under which address each is reached."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*=[A-Za-z0-9][A-Za-z0-9_.-]*")
LOOPBACK = "127.0.0.1"


def parse_labels(text: str) -> dict[str, str]:
    """Labels as `ray start --labels` takes them: `key=value,key=value`; empty text selects every node.

    Raises:
        ValueError: a part is no `key=value`.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := [part for part in parts if LABEL.fullmatch(part) is None]:
        raise ValueError(f"{wrong[0]!r} is no label; write key=value, with commas between")
    return dict(part.split("=", 1) for part in parts)


def matching(nodes: list[dict[str, Any]], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of `ray.nodes()` those that are alive and have all of these labels."""
    return [n for n in nodes if n["Alive"] and all(n["Labels"].get(k) == v for k, v in labels.items())]


def described(nodes: list[dict[str, Any]], labels: Mapping[str, str]) -> str:
    """In words and numbers, what the nodes with these labels have in all."""
    has = [node["Resources"] for node in matching(nodes, labels)]
    cpus, gpus = (sum(resources.get(kind, 0) for resources in has) for kind in ("CPU", "GPU"))
    where = f" with the labels {', '.join(f'{k}={v}' for k, v in labels.items())}" if labels else ""
    return f"{len(has)} nodes{where} have {cpus:.0f} CPUs and {gpus:.0f} GPUs"


def own_address() -> str:
    """Under which address the other nodes of the cluster reach this one; for a process that Ray started."""
    import ray

    return ray.util.get_node_ip_address()


def interface_of(address: str) -> str:
    """The name of this host's network interface that has an address, or else whose network holds it.

    Raises:
        OSError: there is none.
    """
    import psutil

    wanted = ipaddress.ip_address(address)
    found: dict[bool, str] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for own in addresses:
            if own.family == socket.AF_INET and own.netmask:
                interface = ipaddress.ip_interface(f"{own.address}/{own.netmask}")
                if wanted in interface.network:
                    found.setdefault(interface.ip == wanted, name)
    if not found:
        raise OSError(f"no network interface of this host has the address {address}")
    return found.get(True) or found[False]
