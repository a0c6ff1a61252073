"""What a deployment may ask of the GPU pool: the typed fields of the work pool `gpu-process`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.workers.process import ProcessJobConfiguration, ProcessVariables
from pydantic import Field, PrivateAttr

from infra.pool.inventory import Inventory
from infra.pool.labels import MOST_GPUS, GpuLabels
from infra.pool.process import host_name

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

BEAT_SECONDS = 60  # between heartbeats of a run: a server's automation calls one crashed that was silent for long
GPUS = Field(
    default=0,
    ge=0,
    le=MOST_GPUS,
    title="GPUs",
    description="Most GPUs of one host that a run may lease; a run gets all that its scenario needs, or waits. 0 for "
    "runs that need none.",
)
TIGHT_MEMORY = Field(
    default=False,
    title="Tight memory",
    description="The engine takes at most 0.6 of a GPU's memory, for models that leave the trainer too little.",
)
STORE = Field(
    default=None,
    title="Artifact store",
    description="A folder of the host or s3://bucket/prefix; the host's own by default.",
)


class GpuVariables(ProcessVariables):
    """Job variables of a deployment."""

    gpus: int = GPUS
    labels: GpuLabels = Field(default_factory=GpuLabels, description="Labels that the host must have.")  # type: ignore[assignment]
    tight_memory: bool = TIGHT_MEMORY
    store: str | None = STORE


class GpuJobConfiguration(ProcessJobConfiguration):
    """One run's fields, checked by the worker once more: a pool's template can be edited by hand."""

    gpus: int = GPUS
    labels: dict[str, Any] = Field(default_factory=dict)
    tight_memory: bool = TIGHT_MEMORY
    store: str | None = STORE

    _taken: list[str] = PrivateAttr(default_factory=list)

    def prepare_for_flow_run(self, flow_run: FlowRun, *args: Any, **kwargs: Any) -> None:
        """Prefect's preparation, and what the run's own process has to know of its deployment."""
        self.wanted()  # labels that are none are refused before anything is started
        self._taken = sorted(name for name in self.env if host_owned(name))
        super().prepare_for_flow_run(flow_run, *args, **kwargs)
        self.env |= {"FANLINE_GPUS": str(self.gpus), "FANLINE_TIGHT_MEMORY": str(self.tight_memory)}
        self.env.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", str(BEAT_SECONDS))
        if self.store is not None:
            self.env["FANLINE_STORE"] = self.store

    def refusal(self) -> str | None:
        """Why the run must not start here: it says what only the host may, or begins in a folder that is not there."""
        if self._taken:
            return f"The run's job variable env sets {', '.join(self._taken)}, which only the worker's host may set."
        if self.working_dir is not None and not self.working_dir.is_dir():
            return f"The run's job variable working_dir is {self.working_dir}: host {host_name()} has no such folder."
        return None

    def wanted(self) -> GpuLabels:
        """The labels that the deployment asks for, without those that Prefect adds."""
        return GpuLabels(**{n: v for n, v in self.labels.items() if not n.startswith("prefect.io/") and v is not None})


def host_owned(name: str) -> bool:
    """Whether only the host may set a variable: what is loaded into its processes, and where from."""
    owned = name.startswith(("FANLINE_", "LD_", "PYTHON")) or name in {"PATH", "HOME", "RAY_ADDRESS"}
    return owned and name != "FANLINE_STORE"  # a deployment has its store


def unfit(wanted: GpuLabels, gpus: int, have: Inventory) -> str | None:
    """Why this host can not serve a run, with what was asked and what it has; None where it can."""
    host = f"host {have.host} has"
    if wanted.accelerator is not None and wanted.accelerator != have.accelerator:
        return f"The run asks for accelerator {wanted.accelerator}, {host} {have.accelerator}."
    if wanted.memory is not None and wanted.memory > have.memory_gib:
        return f"The run asks for GPUs of {wanted.memory:g} GiB, {host} {len(have.gpus)} of {have.memory_gib:g} GiB."
    if max(gpus, wanted.count or 0) > len(have.gpus):
        asked = f"{gpus} GPUs" if gpus >= (wanted.count or 0) else f"a host of {wanted.count} GPUs"
        return f"The run asks for {asked}, {host} {len(have.gpus)}{' logical ones' if have.emulated else ''}."
    return None
