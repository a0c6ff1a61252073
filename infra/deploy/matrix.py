"""The scenario matrix: which scenarios have deployments, in which pool and queue, when, and under which CI label."""

from pathlib import Path
from typing import Annotated, Self
from zoneinfo import available_timezones

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from infra.errors import ConfigurationError
from infra.pool.labels import GpuLabels
from infra.scenario.load import load, names

MATRIX = Path(__file__).parent / "matrix.yaml"
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
CRON = r"^\S+( \S+){4}$"


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Queue(Part):
    """A queue of a pool. Lower numbers go first; no two queues of a pool share one."""

    priority: int = Field(ge=1)
    concurrency: int = Field(ge=1, description="runs of this queue at once")
    description: str = ""


class Pool(Part):
    """A work pool. Its template is that of the worker type."""

    type: str
    description: str = ""
    concurrency: int = Field(ge=1, description="runs of this pool at once")
    queues: dict[Name, Queue]

    @model_validator(mode="after")
    def _priorities_are_an_order(self) -> Self:
        priorities = sorted(queue.priority for queue in self.queues.values())
        if priorities != list(range(1, len(priorities) + 1)) or "default" not in self.queues:
            raise ValueError("the queues, `default` among them, need the priorities 1, 2, 3, … once each")
        return self


class Entry(Part):
    """A scenario of the catalog that has a deployment."""

    gpus: int = Field(ge=0, description="devices that a run leases")
    pool: Name
    queue: Name
    nightly: bool = False
    labels: GpuLabels = Field(default_factory=GpuLabels, description="what the host must have")
    tags: tuple[Name, ...] = ()
    ci_label: str | None = Field(None, pattern=r"^[\w :./-]+$", description="label of a pull request that starts it")


class Nightly(Part):
    """When the night's parent runs, and from when on it counts as stale or as missing."""

    pool: Name
    queue: Name
    children_queue: Name
    cron: str = Field(pattern=CRON)
    timezone: str
    stale_after_hours: float = Field(gt=0, description="a parent that starts later than this runs nothing")
    notice_after_hours: float = Field(gt=0, description="no verdict for so long is told")

    @model_validator(mode="after")
    def _zone_exists(self) -> Self:
        if self.timezone not in available_timezones():
            raise ValueError(f"there is no time zone {self.timezone!r}")
        return self


class Ci(Part):
    """How pull requests run."""

    queue: Name
    timeout_minutes: int = Field(ge=1)


class Matrix(Part):
    """The whole document."""

    pools: dict[Name, Pool]
    scenarios: dict[Name, Entry] = Field(min_length=1)
    nightly: Nightly
    ci: Ci

    @property
    def every_night(self) -> list[str]:
        """The scenarios that a night runs, in the document's order."""
        return [name for name, entry in self.scenarios.items() if entry.nightly]

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for name, entry in self.scenarios.items():
            if name not in names():
                raise ValueError(f"there is no scenario {name!r} in the catalog")
            needed = load(name).training.world_size
            if entry.gpus < needed:
                raise ValueError(f"{name} has {needed} trainer ranks, {entry.gpus} GPUs are too few")
            self._refuse_unknown_queues(name, entry.pool, entry.queue, self.nightly.children_queue, self.ci.queue)
        self._refuse_unknown_queues("nightly", self.nightly.pool, self.nightly.queue)
        if not self.every_night:
            raise ValueError("no scenario is marked `nightly`: a night without runs would always pass")
        return self

    def _refuse_unknown_queues(self, who: str, pool: str, *queues: str) -> None:
        if pool not in self.pools:
            raise ValueError(f"{who}: there is no pool {pool!r}")
        if missing := sorted(set(queues) - set(self.pools[pool].queues)):
            raise ValueError(f"{who}: pool {pool} has no queue {', '.join(missing)}")


def load_matrix(path: Path = MATRIX) -> Matrix:
    """The validated scenario matrix.

    Raises:
        ConfigurationError: it does not hold together; says where.
    """
    try:
        return Matrix.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as cause:
        wrong = "\n  ".join(f"{'.'.join(map(str, e['loc'])) or 'the document'}: {e['msg']}" for e in cause.errors())
        raise ConfigurationError(f"The scenario matrix {path.name} is not valid:\n  {wrong}") from cause
