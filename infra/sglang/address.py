"""Where a server answers, and the key that it asks for where others than this host can reach it."""

from __future__ import annotations

from dataclasses import dataclass

KEY_VARIABLE = "FANLINE_ENGINE_KEY"


class HiddenKey(str):
    """A key that shows as stars wherever an object that holds it is logged: SGLang logs all its settings."""

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return self


@dataclass(frozen=True)
class ServerAddress:
    """Host, port and key of one server; without a key it answers everybody who reaches it.

    `devices` are its GPUs, one for each tensor-parallel rank, as `CUDA_VISIBLE_DEVICES` names them; none on a CPU.
    """

    host: str
    port: int
    key: HiddenKey | None = None
    devices: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def ranks(self) -> int:
        """Processes of the server that hold a part of the model each."""
        return max(len(self.devices), 1)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
