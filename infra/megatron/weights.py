"""The trainer's weights as full tensors under Hugging Face names: digest, export and push into engines."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from infra.errors import EngineUnavailable
from infra.megatron.config import ModelShape
from infra.megatron.convert import to_huggingface
from infra.megatron.groups import pipeline_group
from infra.megatron.model import ModelParts
from infra.megatron.reports import PushResult

PUSH_SECONDS = 120.0


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


def push(tensors: Mapping[str, Tensor], urls: Sequence[str], version: str) -> PushResult:
    """Send all tensors to every engine through shared memory and have it take the version.

    Raises:
        EngineUnavailable: an engine does not answer or refuses; names its URL and its answer.
    """
    started = time.monotonic()
    # With the `file_descriptor` strategy the server dies when it opens the tensors.
    torch.multiprocessing.set_sharing_strategy("file_system")
    # Clones: an engine may keep the memory, and the trainer goes on to change its own.
    shared = [(name, tensor.detach().clone().contiguous()) for name, tensor in tensors.items()]
    payload = {
        "serialized_named_tensors": [base64.b64encode(ForkingPickler.dumps(shared)).decode()],
        "flush_cache": True,
        "weight_version": version,
    }
    for url in urls:
        _post(f"{url}/update_weights_from_tensor", payload)
    size = sum(t.numel() * t.element_size() for _, t in shared)
    return PushResult(tensors=len(shared), bytes=size, seconds=time.monotonic() - started, digest=digest(dict(shared)))


def _post(url: str, payload: Mapping[str, object]) -> None:
    body = json.dumps(payload).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
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
