"""The GPUs of this host: NVIDIA's, or logical ones that a host without any presents."""

from __future__ import annotations

import csv
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import InfraFault
from infra.pool.process import host_name
from infra.settings import Settings

DRIVER = Path("/dev/nvidiactl")
QUERY_SECONDS = 30.0
GIB, MIB_A_GIB = 2**30, 1024
MODEL = re.compile(r"\b[A-Z]{1,3}\d{1,4}[A-Z]{0,2}\b")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU.

    Args:
        id: names it on this host: NVIDIA's UUID, or `logical-<pool>-<index>`.
        index: NVIDIA's number, in the order of the PCI bus.
        accelerator: label, for example `h200`; `cpu` for a logical GPU.
        memory_gib: total memory; of a logical GPU its share of the host's.
    """

    id: str
    index: int
    accelerator: str
    memory_gib: float


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What runs on a GPU now: used memory in MiB and the compute processes that the driver tells of."""

    used_mib: int
    pids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All GPUs that runs of this host may lease."""

    host: str
    gpus: tuple[Gpu, ...]
    emulated: bool

    @property
    def accelerator(self) -> str:
        """The label of this host: of its GPUs, `cpu` without any."""
        return "+".join(sorted({gpu.accelerator for gpu in self.gpus})) or "cpu"

    @property
    def memory_gib(self) -> float:
        """Memory that every GPU has; 0 without any."""
        return min((gpu.memory_gib for gpu in self.gpus), default=0.0)


def inventory(now: Settings) -> Inventory:
    """What this host has: `FANLINE_LOGICAL_GPUS` logical GPUs where that is set, else those of NVIDIA's driver.

    Raises:
        InfraFault: there is a driver and it does not answer.
    """
    if now.logical_gpus is not None or not DRIVER.exists():
        return Inventory(host=host_name(), gpus=_logical(now.pool or "host", now.logical_gpus or 0), emulated=True)
    rows = _ask("--query-gpu=index,uuid,name,memory.total")
    gpus = [
        Gpu(id=uuid, index=int(index), accelerator=label_of(name), memory_gib=round(int(total) / MIB_A_GIB, 1))
        for index, uuid, name, total in rows
    ]
    return Inventory(host=host_name(), gpus=tuple(visible(gpus, now.cuda_visible_devices)), emulated=False)


def usage() -> dict[str, Usage]:
    """Memory and processes of each of NVIDIA's GPUs, by id."""
    pids: dict[str, list[int]] = {}
    for pid, uuid in _ask("--query-compute-apps=pid,gpu_uuid"):
        pids.setdefault(uuid, []).append(int(pid) if pid.isdigit() else 0)  # some containers do not see the number
    used = _ask("--query-gpu=uuid,memory.used")
    return {uuid: Usage(used_mib=int(mib), pids=tuple(sorted(pids.get(uuid, ())))) for uuid, mib in used}


def label_of(name: str) -> str:
    """The accelerator label of a product name: `NVIDIA H200` is `h200`, `NVIDIA A100-SXM4-80GB` is `a100`."""
    if found := MODEL.search(name):
        return found[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", name.removeprefix("NVIDIA ").lower()).strip("-")


def visible(gpus: Sequence[Gpu], devices: str | None) -> list[Gpu]:
    """Those that `CUDA_VISIBLE_DEVICES` names, by index or UUID, in the host's order; all where it is not set."""
    if devices is None:
        return list(gpus)
    names = [name.strip() for name in devices.split(",") if name.strip()]
    return [
        gpu for gpu in gpus if any(n == str(gpu.index) or (n[:4] == "GPU-" and gpu.id.startswith(n)) for n in names)
    ]


def cuda_environment(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Variables under which a process sees these alone: NVIDIA's numbers, in the order in which nvidia-smi counts.

    Every library reads numbers; not every one reads UUIDs.
    """
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in gpus)}


def _logical(pool: str, count: int) -> tuple[Gpu, ...]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    share = round(total / max(count, 1), 1)
    pool = re.sub(r"[^A-Za-z0-9_.-]+", "-", pool)  # the id is a file name too
    return tuple(
        Gpu(id=f"logical-{pool}-{index}", index=index, accelerator="cpu", memory_gib=share) for index in range(count)
    )


def _ask(query: str) -> list[list[str]]:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as cause:
        raise InfraFault(
            f"`{' '.join(command)}` failed: {cause}.", next_step="Mend NVIDIA's driver, or its device files."
        ) from cause
    return [row for row in csv.reader(answer.stdout.splitlines(), skipinitialspace=True) if row]
