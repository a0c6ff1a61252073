"""What the environment says. Nothing else in fanline reads environment variables."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from infra.errors import ConfigurationError


def _names(value: Any) -> Any:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


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
    ray_address: str | None = Field(None, validation_alias=AliasChoices("RAY_ADDRESS", "FANLINE_RAY_ADDRESS"))
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
