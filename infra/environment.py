"""What numbers depend on besides code and scenario, as one digest: packages, interpreter, CPU, threads, device."""

import importlib.metadata
import platform
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.store import canonical_json, sha256

SHOWN_PACKAGES = (
    "fanline",
    "torch",
    "sglang",
    "megatron-core",
    "transformers",
    "ray",
    "prefect",
    "numpy",
    "safetensors",
)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Equal environments promise equal numbers; the digest is over all fields."""

    packages: dict[str, str]
    python: str
    machine: str
    cpu: str
    cpu_flags: tuple[str, ...]
    torch_threads: int
    device: str

    @property
    def digest(self) -> str:
        return sha256(canonical_json(asdict(self)))

    def versions(self) -> dict[str, str]:
        """The versions that a reader looks for first."""
        return {"python": self.python} | {n: self.packages[n] for n in SHOWN_PACKAGES if n in self.packages}

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cpu_flags": list(self.cpu_flags), "digest": self.digest}


def describe(device: str) -> Environment:
    """The environment of this process.

    Args:
        device: where engine and trainer ran, as the scenario says (`auto` is resolved here).
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model, flags = _cpu()
    return Environment(
        packages=_packages(),
        python=platform.python_version(),
        machine=f"{sys.platform}-{platform.machine()}",
        cpu=model,
        cpu_flags=flags,
        torch_threads=torch.get_num_threads(),
        device=device if device == "cpu" else f"{device}: {torch.cuda.get_device_name()}",
    )


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for (
        package
    ) in importlib.metadata.distributions():  # in the order of the path: the first is the one that is imported
        found.setdefault(package.metadata["Name"], package.version)
    return {re.sub(r"[-_.]+", "-", name).lower(): found[name] for name in sorted(found)}


def _cpu() -> tuple[str, tuple[str, ...]]:
    """Model name and instruction set flags of the first processor; the machine's name where Linux does not say."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor(), ()
    first = cpuinfo.read_text().split("\n\n", 1)[0]
    fields = dict(re.findall(r"^(.+?)\s*:\s*(.*)$", first, flags=re.MULTILINE))
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("model name", platform.processor()), tuple(sorted(flags.split()))
