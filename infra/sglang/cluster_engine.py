"""One SGLang server on a node of a joined Ray cluster: an actor there owns it, the flow holds it by the actor."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from infra.errors import EngineUnavailable, FanlineError
from infra.megatron.rank_group import PLACEMENT_SECONDS, python_path
from infra.nodes import described, own_address
from infra.ray_cluster import RayCluster, signals_heard
from infra.sglang.address import HiddenKey, ServerAddress
from infra.sglang.client import EngineClient
from infra.sglang.engine import SGLangEngine
from infra.sglang.serving import ServingEngine
from infra.sources.model import on_this_host

if TYPE_CHECKING:
    from torch import Tensor

    from infra.records.sources import ModelRef
    from infra.run import Run
    from infra.sglang.flags import Device

STOP_SECONDS = 15.0
LOOK_SECONDS = 10.0
LATE_SECONDS = 30.0  # the actor's own deadline comes first: it can say what its server did


class EngineHost:
    """The actor: it owns the server on its node, which ends with it, and takes weights that another node sends."""

    def __init__(self, run: Run, model: ModelRef, device: Device, key: HiddenKey):
        self.engine = SGLangEngine.for_run(run, on_this_host(model), device=device, host=own_address(), key=key)

    def start(self) -> None:
        self.engine.start()

    def wait_ready(self) -> ServerAddress:
        self.engine.wait_ready()
        return self.engine.receivers[0]

    def running(self) -> bool:
        return self.engine.running

    def take(self, tensors: Sequence[tuple[str, Tensor]], version: str | None) -> None:
        """Load these tensors into the server, through this host's shared memory; see `infra.megatron.weights.send`."""
        from infra.megatron.weights import send

        send(self.engine.receivers[0], tensors, version)

    def stop(self) -> None:
        self.engine.stop()


class ClusterEngine(ServingEngine):
    """As `SGLangEngine`, for a server on another host. It is reachable from the cluster's network, with a key.

    Args:
        cluster: a joined one; the server runs on a node with its `engine_labels`, with one CPU and one GPU.
    """

    def __init__(self, run: Run, model: ModelRef, cluster: RayCluster):
        self.run, self.model, self.cluster = run, model, cluster
        self._host: Any = None
        self._address: ServerAddress | None = None

    @property
    def receivers(self) -> tuple[Any]:
        """What a trainer rank hands weights to: the actor, or the server itself where it is a member of a group."""
        return (self._address if self.run.scenario.engine.weight_sync == "distributed" else self._host,)

    @property
    def running(self) -> bool:
        """Whether the actor answers and its server's process is there."""
        if self._host is None:
            return False
        try:
            return ray.get(self._host.running.remote(), timeout=LOOK_SECONDS)
        except (RayError, TimeoutError):
            return False

    def client(self, concurrency: int | None = None) -> EngineClient:
        """A client for one event loop, to be used as `async with engine.client() as client`."""
        scenario = self.run.scenario
        deadline, most = scenario.engine.request_deadline_seconds, concurrency or scenario.rollout.concurrency
        assert self._address is not None, "the engine is not ready"
        return EngineClient(self._address.url, deadline, most, headers=self._address.headers)

    def start(self) -> None:
        """Create the actor on a node with the labels, unless it runs; its server starts while the caller goes on.

        Raises:
            EngineUnavailable: no node with these labels has a CPU and a GPU free.
        """
        from infra.megatron.device import resolve

        if self.running:
            return
        self.cluster.connect()
        kind, labels = resolve(self.run.scenario), self.cluster.engine_labels
        device = {} if kind == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        actor = ray.remote(num_cpus=1, num_gpus=1, max_restarts=0)(EngineHost).options(
            label_selector=labels, runtime_env={"env_vars": {"PYTHONPATH": python_path(), **device}}
        )
        key = HiddenKey(secrets.token_hex(32))
        self._host = actor.remote(self.run, self.model, kind, key)
        try:
            self._answer(self._host.start.remote(), PLACEMENT_SECONDS)
        except GetTimeoutError:
            self.stop()
            raise self._unavailable(
                f"found no free place within {PLACEMENT_SECONDS:g} s: {described(ray.nodes(), labels)}, not all free"
            ) from None

    def wait_ready(self) -> None:
        """Return when the server answers.

        Raises:
            EngineUnavailable: it did not come up, or its node is gone; shows the server's last lines.
        """
        seconds = 2 * self.run.scenario.engine.start_deadline_seconds + LATE_SECONDS
        try:
            self._address = self._answer(self._host.wait_ready.remote(), seconds)
        except GetTimeoutError:
            self.stop()
            raise self._unavailable(f"did not answer within {seconds:g} s") from None

    def stop(self) -> None:
        """End the server with the actor; nothing happens where the node is gone."""
        host, self._host, self._address = self._host, None, None
        if host is not None:
            with contextlib.suppress(RayError, TimeoutError):
                ray.get(host.stop.remote(), timeout=STOP_SECONDS)
            with contextlib.suppress(RayError):
                ray.kill(host)

    def _answer(self, call: ray.ObjectRef, seconds: float) -> Any:
        try:
            with signals_heard():
                return ray.get(call, timeout=seconds)
        except RayTaskError as error:
            if isinstance(error.cause, FanlineError):
                raise error.cause from None
            raise self._unavailable(f"failed on its node: {error}") from error
        except RayActorError as error:
            raise self._unavailable(f"is gone with its process or its node: {error}") from error

    def _unavailable(self, what: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"The SGLang server of run {self.run.run_id} {what}.",
            next_step="See `ray status`; FANLINE_ENGINE_LABELS says on which nodes it may run.",
            ids=[self.run.run_id],
        )
