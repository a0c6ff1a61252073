"""The labels of a GPU pool: what a run can ask of the host that takes it."""

from pydantic import BaseModel, ConfigDict, Field

MOST_GPUS = 64


class GpuLabels(BaseModel):
    """What a run asks of the host; it is refused by a host that is otherwise."""

    model_config = ConfigDict(extra="forbid")

    accelerator: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9+-]+$",
        description="Kind of GPU, for example h200; cpu for a host with logical GPUs.",
    )
    count: int | None = Field(default=None, ge=0, le=MOST_GPUS, description="Least number of GPUs that the host has.")
    memory: float | None = Field(default=None, ge=0, description="Least memory of each GPU, in GiB.")
