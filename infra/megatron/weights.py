"""The trainer's weights as full tensors under Hugging Face names: digest, export and push into engines."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler

import ray
import torch
import torch.distributed as dist
import torch.multiprocessing
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from torch import Tensor

from infra.errors import EngineUnavailable
from infra.megatron.config import ModelShape
from infra.megatron.convert import to_huggingface
from infra.megatron.groups import pipeline_group
from infra.megatron.model import ModelParts
from infra.megatron.reports import PushResult
from infra.sglang.address import ServerAddress

PUSH_SECONDS = 120.0
PART_BYTES = 256 * 2**20

Receiver = ServerAddress | ActorHandle


def gather(model: ModelParts, named: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The whole model's tensors under Hugging Face names, sorted; a collective over the model-parallel ranks.

    Args:
        named: this rank's parameters or gradients by Megatron's names.
    """
    mine = list(to_huggingface(model, named, shape))
    group = pipeline_group()
    if group.size() == 1:
        return dict(sorted(mine))
    whole: dict[str, Tensor] = {}
    for stage in range(group.size()):
        source = dist.get_global_rank(group, stage)
        offered = [[(name, list(t.shape), t.dtype) for name, t in mine]] if group.rank() == stage else [None]
        dist.broadcast_object_list(offered, src=source, group=group)
        for number, (name, size, dtype) in enumerate(offered[0] or []):
            tensor = mine[number][1].contiguous() if group.rank() == stage else torch.empty(size, dtype=dtype)
            tensor = tensor.to(mine[0][1].device)
            dist.broadcast(tensor, src=source, group=group)
            whole[name] = tensor
    return dict(sorted(whole.items()))


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over sorted names and float32 bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].detach().float().contiguous().cpu().numpy().data)
    return total.hexdigest()


def push(tensors: Mapping[str, Tensor], receivers: Sequence[Receiver], version: str) -> PushResult:
    """Send all tensors to every engine and have it take the version.

    Args:
        receivers: servers of this host, which get them through shared memory, or actors that own one on another node.
    Raises:
        EngineUnavailable: an engine does not answer or refuses; names its URL and its answer.
    """
    started = time.monotonic()
    # Clones: an engine may keep the memory, and the trainer goes on to change its own.
    named = [(name, tensor.detach().clone().contiguous()) for name, tensor in tensors.items()]
    for receiver in receivers:
        if isinstance(receiver, ServerAddress):
            send(receiver, named, version)
        else:
            _hand_over(receiver, named, version)
    size = sum(t.numel() * t.element_size() for _, t in named)
    return PushResult(tensors=len(named), bytes=size, seconds=time.monotonic() - started, digest=digest(dict(named)))


def send(address: ServerAddress, named: Sequence[tuple[str, Tensor]], version: str) -> None:
    """Have a server of this host load these tensors from shared memory, and take the version.

    Raises:
        EngineUnavailable: it does not answer, or refuses.
    """
    # With the `file_descriptor` strategy the server dies when it opens the tensors.
    torch.multiprocessing.set_sharing_strategy("file_system")
    payload = {
        "serialized_named_tensors": [base64.b64encode(ForkingPickler.dumps(named)).decode()],
        "flush_cache": True,
        "weight_version": version,
    }
    _post(f"{address.url}/update_weights_from_tensor", payload, address.headers)


def _hand_over(host: ActorHandle, named: Sequence[tuple[str, Tensor]], version: str) -> None:
    """By way of Ray's object store, in parts of a bounded size; no request is running between two parts."""
    try:
        for part in parts(named):
            ray.get(host.take.remote([(name, t.cpu()) for name, t in part], version), timeout=PUSH_SECONDS)
    except RayTaskError as error:
        if isinstance(error.cause, EngineUnavailable):
            raise error.cause from None
        raise
    except (RayActorError, GetTimeoutError) as error:
        words = f"The engine's node did not take the weights {version}: {error}"
        raise EngineUnavailable(words, next_step="See `ray status`.", ids=[version]) from error


def parts(named: Sequence[tuple[str, Tensor]], most: int = PART_BYTES) -> Iterator[list[tuple[str, Tensor]]]:
    """Runs of consecutive tensors of at most so many bytes together; one tensor at least."""
    part: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in named:
        own = tensor.numel() * tensor.element_size()
        if part and size + own > most:
            yield part
            part, size = [], 0
        part.append((name, tensor))
        size += own
    if part:
        yield part


def _post(url: str, payload: Mapping[str, object], headers: Mapping[str, str]) -> None:
    body = json.dumps(payload).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=PUSH_SECONDS) as answer:
            result = json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        raise _refused(url, refusal.read().decode(errors="replace")) from refusal
    except OSError as cause:
        raise EngineUnavailable(
            f"{url} does not answer: {cause}.", next_step="See the engine's log.", ids=[url]
        ) from cause
    if not result["success"]:
        raise _refused(url, result["message"])


def _refused(url: str, answer: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"{url} did not take the weights: {answer[:500]}", next_step="See the engine's log.", ids=[url]
    )


def parameters_of(model: ModelParts) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}
