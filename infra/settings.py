"""What the environment says. Nothing else in fanline reads environment variables."""

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from infra.errors import ConfigurationError
from infra.nodes import parse_labels


def _names(value: Any) -> Any:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


def _labels(value: Any) -> Any:
    return parse_labels(value) if isinstance(value, str) else value


class Settings(BaseSettings):
    """Settings of this machine or deployment; a scenario never holds them."""

    model_config = SettingsConfigDict(env_prefix="FANLINE_", frozen=True)

    home: Path = Field(Path(".fanline"), description="folder for everything that is not in the store")
    store: str | None = Field(None, description="artifact store: a folder or s3://bucket/prefix; default HOME/store")
    spool: Path | None = Field(None, description="folder for growing ledger files and logs; default HOME/spool")
    cache: Path | None = Field(None, description="folder for downloaded models; default HOME/cache")
    hook_packages: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = Field(
        ("hooks",), description="packages that hooks may come from, with commas between"
    )
    logical_gpus: int | None = Field(
        None,
        ge=0,
        le=64,
        description="GPUs that a host without any presents; nothing is leased there where it is not set",
    )
    lease_dir: Path = Field(
        Path(f"/var/tmp/fanline-leases-{os.getuid()}"),
        description="folder on a disk of this host for device leases; the same for all that share its GPUs",
    )
    lease_deadline: float = Field(
        6 * 3600, gt=0, description="seconds that a run waits for its GPUs before it ends INFRA"
    )
    gpu_free_mib: int = Field(1024, ge=0, description="memory in MiB that may be used on a GPU that counts as free")
    drain_seconds: float = Field(
        3.0, ge=0, description="how long a worker that is asked to end lets its runs go on; then they are rescheduled"
    )
    pool: str | None = Field(None, description="work pool of this process; a worker sets it for its runs")
    gpus: int | None = Field(None, ge=0, description="GPUs that the deployment of this run asks for; set by a worker")
    lease_priority: int = Field(100, ge=0, description="place in the line for GPUs, 1 first; set by a worker")
    tight_memory: bool = Field(
        False,
        validation_alias=AliasChoices("FANLINE_TIGHT_MEMORY", "SLIME_TEST_TIGHT_DEVICE_MEMORY"),
        description="the engine takes at most 0.6 of a GPU's memory; set by a worker",
    )
    cuda_visible_devices: str | None = Field(None, validation_alias="CUDA_VISIBLE_DEVICES")
    ray_address: str | None = Field(None, validation_alias=AliasChoices("RAY_ADDRESS", "FANLINE_RAY_ADDRESS"))
    trainer_labels: Annotated[dict[str, str], NoDecode, BeforeValidator(_labels)] = Field(
        {}, description="labels of the Ray nodes that trainer ranks may run on, key=value with commas between"
    )
    engine_labels: Annotated[dict[str, str], NoDecode, BeforeValidator(_labels)] = Field(
        {}, description="labels of the Ray nodes that the engine may run on; without any it runs on the flow's host"
    )
    prefect_home: Path = Field(Path.home() / ".prefect", validation_alias="PREFECT_HOME")
    prefect_api_url: str | None = Field(None, validation_alias="PREFECT_API_URL")
    hf_endpoint: str | None = Field(None, validation_alias="HF_ENDPOINT")
    hf_offline: bool = Field(False, validation_alias="HF_HUB_OFFLINE")

    @property
    def store_uri(self) -> str:
        return self.store or str((self.home / "store").absolute())

    @property
    def spool_dir(self) -> Path:
        return (self.spool or self.home / "spool").absolute()

    @property
    def cache_dir(self) -> Path:
        return (self.cache or self.home / "cache").absolute()


def visible_devices() -> tuple[str, ...]:
    """What `CUDA_VISIBLE_DEVICES` names of this process, as it is named there: numbers or UUIDs."""
    return tuple(name for name in (settings().cuda_visible_devices or "").split(",") if name)


def settings() -> Settings:
    """The settings as the environment is now.

    Raises:
        ConfigurationError: a variable has a value that it can not have.
    """
    try:
        return Settings()  # type: ignore[call-arg]
    except ValidationError as cause:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in cause.errors())
        raise ConfigurationError(f"An environment variable of fanline is not valid: {wrong}.") from cause
