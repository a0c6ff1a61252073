"""The trainer's weights as full tensors under Hugging Face names: export and push into engines."""

from __future__ import annotations

import base64
import json
import pickle
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import ray
import torch
import torch.distributed as dist
import torch.multiprocessing
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from safetensors.torch import save_file
from torch import Tensor

from infra.errors import EngineUnavailable
from infra.megatron.config import ModelShape
from infra.megatron.convert import to_huggingface
from infra.megatron.groups import pipeline_group
from infra.megatron.model import ModelParts
from infra.megatron.reports import PUSH_SECONDS, PushResult
from infra.settings import visible_devices
from infra.sglang.address import ServerAddress
from infra.sglang.load_weights import BUFFER, LOADER, Named, in_file, message, packed
from infra.weights_digest import digest

PART_BYTES = 2**30
OBJECT_BYTES = 256 * 2**20  # of a part that goes by way of Ray's object store
LOAD = "/update_weights_from_tensor"

Receiver = ServerAddress | ActorHandle
Transport = Callable[[Named, Sequence[Receiver], str], None]


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


def push(
    tensors: Mapping[str, Tensor], receivers: Sequence[Receiver], version: str, transport: Transport | None = None
) -> PushResult:
    """Send all tensors to every engine and have it take the version; through memory unless told otherwise.

    Raises:
        EngineUnavailable: an engine does not answer or refuses; names its URL and its answer.
    """
    started = time.monotonic()
    named = [(name, tensor.detach().contiguous()) for name, tensor in tensors.items()]
    (transport or by_memory)(named, receivers, version)
    size = sum(t.numel() * t.element_size() for _, t in named)
    return PushResult(tensors=len(named), bytes=size, seconds=time.monotonic() - started, digest=digest(dict(named)))


def by_memory(named: Named, receivers: Sequence[Receiver], version: str) -> None:
    """To servers of this host through shared memory (on the GPU that holds the tensors without leaving it), to actors
    that own one on another node through Ray's object store."""
    for receiver in receivers:
        if isinstance(receiver, ServerAddress):
            send(receiver, named, version)
        else:
            _hand_over(receiver, named, version)


def by_folder(spool: Path) -> Transport:
    """To servers of this host by way of a file below `spool`, which is removed again."""

    def transport(named: Named, receivers: Sequence[Receiver], version: str) -> None:
        spool.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=spool) as folder:
            for part, last in whole(named):
                path = Path(folder) / "part.safetensors"
                save_file({name: t.cpu().contiguous() for name, t in part}, path)
                request = message(in_file(part, str(path)))
                for receiver in receivers:
                    assert isinstance(receiver, ServerAddress), "the reference stack refuses a folder for other hosts"
                    post(receiver, LOAD, load_request([request] * receiver.ranks, version if last else None))

    return transport


def send(address: ServerAddress, named: Named, version: str | None) -> None:
    """Have a server of this host load these tensors from shared memory, and take the version.

    Args:
        version: None where more of the push is to come.
    Raises:
        EngineUnavailable: it does not answer, or refuses.
    """
    own_gpu = address.devices == visible_devices() != ()
    for part, last in whole(named):
        sent = message(*packed(part if own_gpu else [(name, tensor.cpu()) for name, tensor in part]))
        post(address, LOAD, load_request([sent] * address.ranks, version if last else None))
        del sent  # before the next part is packed


def load_request(messages: Sequence[Named], version: str | None) -> dict[str, object]:
    """The body that has a server's ranks load what they are told, each by a message of its own.

    Args:
        messages: to be kept until the server answered.
        version: the weights', with their last part: the server forgets then what it has cached. None before.
    """
    return {
        # Each rank opens a pickle of its own, also of one message: shared memory counts who is going to.
        "serialized_named_tensors": [base64.b64encode(_pickled(m)).decode() for m in messages],
        "load_format": LOADER,
        "flush_cache": version is not None,
        "weight_version": version,
    }


def _pickled(message: Named) -> bytes:
    """With what shares memory where there is a buffer; else it is whole in itself, for other hosts too."""
    if BUFFER not in dict(message):
        return pickle.dumps(message)
    # With the `file_descriptor` strategy the server dies when it opens the tensors.
    torch.multiprocessing.set_sharing_strategy("file_system")
    return bytes(ForkingPickler.dumps(message))


def _hand_over(host: ActorHandle, named: Named, version: str) -> None:
    """By way of Ray's object store, in parts of a bounded size; no request is running between two parts."""
    try:
        for part, last in whole(named, OBJECT_BYTES):
            taken = host.take.remote([(name, t.cpu()) for name, t in part], version if last else None)
            ray.get(taken, timeout=PUSH_SECONDS)
    except RayTaskError as error:
        if isinstance(error.cause, EngineUnavailable):
            raise error.cause from None
        raise
    except (RayActorError, GetTimeoutError) as error:
        words = f"The engine's node did not take the weights {version}: {error}"
        raise EngineUnavailable(words, next_step="See `ray status`.", ids=[version]) from error


def whole(named: Named, most: int | None = None) -> Iterator[tuple[list[tuple[str, Tensor]], bool]]:
    """The parts that tensors go in, of at most so many bytes each, and of each whether it is the last."""
    todo = list(parts(named, most or PART_BYTES))
    yield from ((part, part is todo[-1]) for part in todo)


def parts(named: Named, most: int) -> Iterator[list[tuple[str, Tensor]]]:
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


def post(server: ServerAddress, path: str, payload: Mapping[str, object]) -> None:
    """Ask a server to do something with its weights.

    Raises:
        EngineUnavailable: it does not answer, or refuses.
    """
    url, body = f"{server.url}{path}", json.dumps(payload).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **server.headers})
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
