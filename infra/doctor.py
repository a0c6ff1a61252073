"""What this machine and environment lack for a run, and the command that mends it. Imports no torch, so it is quick."""

import csv
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from rich.table import Table

from infra import bootstrap
from infra.settings import Settings, settings

GIB = 2**30
LEAST_MEMORY, LEAST_DISK, LEAST_SHARED_MEMORY = 6 * GIB, 2 * GIB, GIB // 2
INSTALL = "python3 infra/bootstrap.py install"
# Its compiled part does not load beside a CPU build of torch, and transformers imports it when it is there.
UNWANTED = ("torchaudio",)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at.

    Args:
        name: what was looked at.
        ok: whether a run can work with it.
        found: what is there, in words.
        mend: the command or step that mends it; empty when ok.
    """

    name: str
    ok: bool
    found: str
    mend: str = ""


def diagnose() -> list[Finding]:
    """Look at everything a run needs, in the order in which a person would mend it."""
    now = settings()
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(check, now) for check in (store, prefect_api, ray_cluster)]
        quick = [python(), packages(), processor(), memory(), *gpus(), disk(now), shared_memory(), loopback()]
        return [*quick, *(finding.result() for finding in slow)]


def table(findings: list[Finding]) -> Table:
    """The findings for a terminal: what is wrong carries its mending step below."""
    lines = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        lines.add_row("[green]ok[/]" if finding.ok else "[red]no[/]", finding.name, finding.found)
        if finding.mend:
            lines.add_row("", "", f"[yellow]mend:[/] {finding.mend}")
    return lines


def python() -> Finding:
    ok = sys.version_info[:2] in bootstrap.SUPPORTED and sys.platform == "linux"
    mend = "" if ok else "Use Python 3.11 or 3.12 on Linux: python3.11 infra/bootstrap.py install"
    return Finding(name="python", ok=ok, found=f"{sys.version.split()[0]} on {sys.platform}, {sys.prefix}", mend=mend)


def lock_pins(lock: Path) -> dict[str, str]:
    """Version by package name, as the lock has them for this Python."""
    lines = re.findall(r"^[\w.-]+==.*$", lock.read_text(), re.M)
    pins = [pin for pin in map(Requirement, lines) if pin.marker is None or pin.marker.evaluate()]
    return {pin.name: next(iter(pin.specifier)).version for pin in pins}


def packages(lock: Path | None = None) -> Finding:
    """The installed packages against the lock of this machine's kind."""
    lock = lock or bootstrap.ROOT / "infra" / "locks" / f"{bootstrap.detect_device()}.txt"
    pins = lock_pins(lock)
    wrong = list(_differences(pins))
    if wrong:
        shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        return Finding(name="packages", ok=False, found=f"not as {lock.name} says: {shown}", mend=INSTALL)
    if unwanted := [name for name in UNWANTED if _installed(name)]:
        mend = f"{sys.executable} -m pip uninstall {' '.join(unwanted)}"
        return Finding(name="packages", ok=False, found=f"{', '.join(unwanted)} breaks other imports", mend=mend)
    shown = ", ".join(f"{name} {pins[name]}" for name in ("torch", "sglang", "megatron-core", "ray", "prefect"))
    return Finding(name="packages", ok=True, found=f"all {len(pins)} of {lock.name}: {shown}")


def _differences(pins: dict[str, str]) -> Iterator[str]:
    for name, pinned in pins.items():
        found = _installed(name)
        # A pin without a local part (2.11.0) also takes a local build (2.11.0+cu130), as pip does.
        if found is None:
            yield f"{name} is missing"
        elif pinned not in (found, found.split("+")[0]):
            yield f"{name} {found} instead of {pinned}"
    if _installed("fanline") is None:
        yield "fanline itself is missing"


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> Finding:
    cores = len(os.sched_getaffinity(0))
    mend = "" if cores >= 2 else "Two cores are the least that runs finish on in time."
    return Finding(name="processor", ok=cores >= 2, found=f"{cores} cores", mend=mend)


def memory() -> Finding:
    known = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M))
    total, available = (int(known[key]) * 1024 for key in ("MemTotal", "MemAvailable"))
    ok = available >= LEAST_MEMORY
    mend = "" if ok else f"Free memory: a run takes up to {_gib(LEAST_MEMORY)}."
    return Finding(name="memory", ok=ok, found=f"{_gib(available)} of {_gib(total)} available", mend=mend)


def gpus() -> list[Finding]:
    """One finding for each CUDA device, or one that says that there is none."""
    if bootstrap.detect_device() == "cpu":
        return [Finding(name="gpu", ok=True, found="none: engine and trainer run on the CPU")]
    query = ["nvidia-smi", "--query-gpu=index,name,memory.free,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    if answer.returncode:
        problem = (answer.stdout + answer.stderr).strip()
        return [Finding(name="gpu", ok=False, found=f"nvidia-smi failed: {problem}", mend="Mend NVIDIA's driver.")]
    rows = csv.reader(answer.stdout.splitlines(), skipinitialspace=True)
    return [Finding(name=f"gpu {i}", ok=True, found=f"{name}, {free} of {total} free") for i, name, free, total in rows]


def disk(now: Settings) -> Finding:
    home = now.home.absolute()
    folder = next(parent for parent in (home, *home.parents) if parent.exists())
    free = shutil.disk_usage(folder).free
    mend = "" if free >= LEAST_DISK else f"Free at least {_gib(LEAST_DISK)}, or set FANLINE_HOME to a larger disk."
    return Finding(name="disk", ok=not mend, found=f"{_gib(free)} free for {home}", mend=mend)


def shared_memory() -> Finding:
    """Ray's objects and the weights on their way into the engine."""
    free = shutil.disk_usage("/dev/shm").free
    ok = free >= LEAST_SHARED_MEMORY and os.access("/dev/shm", os.W_OK)
    mend = "" if ok else "Make /dev/shm larger and writable (in a container: --shm-size=2g)."
    return Finding(name="/dev/shm", ok=ok, found=f"{_gib(free)} free", mend=mend)


def loopback() -> Finding:
    """A server on a port of the kernel's choice, and a client that reaches it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            socket.create_connection(address, timeout=1).close()
    except OSError as problem:
        mend = "Allow this user to open and reach ports on 127.0.0.1."
        return Finding(name="loopback", ok=False, found=f"127.0.0.1 can not be used: {problem}", mend=mend)
    return Finding(name="loopback", ok=True, found=f"127.0.0.1 works (port {address[1]} was free)")


def store(now: Settings) -> Finding:
    """The artifact store's own probe, in a process of its own, so that a store that hangs does not hang this one."""
    probe = "import sys; from infra.store import ArtifactStore; ArtifactStore(sys.argv[1]).probe()"
    mend = "Set FANLINE_STORE to a folder or s3://bucket/prefix that this user may write."
    try:
        subprocess.run(
            [sys.executable, "-c", probe, now.store_uri], capture_output=True, text=True, timeout=10, check=True
        )
    except subprocess.TimeoutExpired:
        return Finding(name="store", ok=False, found=f"{now.store_uri} does not answer within 10 s", mend=mend)
    except subprocess.CalledProcessError as problem:
        reason = problem.stderr.strip().splitlines()[-1]
        return Finding(name="store", ok=False, found=reason, mend=mend)
    return Finding(name="store", ok=True, found=f"{now.store_uri} is written, read and never overwritten")


def prefect_api(now: Settings) -> Finding:
    if now.prefect_api_url is None:
        return Finding(name="prefect", ok=True, found="no PREFECT_API_URL: each run starts a server of its own")
    mend = "Start that server, or unset PREFECT_API_URL to let each run start its own."
    try:
        with urllib.request.urlopen(f"{now.prefect_api_url.rstrip('/')}/version", timeout=3) as answer:
            version = answer.read().decode().strip('"')
    except (urllib.error.URLError, TimeoutError, ValueError) as problem:
        return Finding(name="prefect", ok=False, found=f"{now.prefect_api_url} does not answer: {problem}", mend=mend)
    return Finding(name="prefect", ok=True, found=f"{now.prefect_api_url}, version {version}")


def ray_cluster(now: Settings) -> Finding:
    address = now.ray_address
    if address is None or address == "local":
        return Finding(name="ray", ok=True, found="no RAY_ADDRESS: each run starts a cluster of its own")
    target = urlsplit(address if "://" in address else f"//{address}")
    mend = "Start that cluster (`ray start --head`), or unset RAY_ADDRESS to let each run start its own."
    if address == "auto":
        here = Path("/tmp/ray/ray_current_cluster")
        found = f"auto: {here.read_text().strip()}" if here.exists() else "auto: no cluster runs on this machine"
        return Finding(name="ray", ok=here.exists(), found=found, mend="" if here.exists() else mend)
    try:
        socket.create_connection((target.hostname, target.port or 6379), timeout=3).close()
    except OSError as problem:
        return Finding(name="ray", ok=False, found=f"{address} can not be reached: {problem}", mend=mend)
    return Finding(name="ray", ok=True, found=f"{address} is reached")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
