"""The rank of `fanline bench training`: python -m infra.bench.training_rank FOLDER KIND TOKENS …"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from infra.bench.gate import answer, wait_for_go
from infra.bench.random_model import SAMPLE, write_model
from infra.megatron.core import TrainerCore
from infra.megatron.device import Device
from infra.megatron.forward import LossForward, TrainingBatch, forward_backward, run_model
from infra.megatron.gradient import unclipped_norm
from infra.megatron.layout import Layout
from infra.megatron.packing import PackedBatch, Packer
from infra.records.plan import PlannedSample
from infra.scenario.load import load
from infra.scenario.model import Scenario

WARM_UP, MEASURED, PROFILED_OPERATIONS = 3, 5, 25
PROMPT, LONGEST = 128, 4096
GIB = 2**30


def main(folder: Path, kind: Any, sizes: list[int]) -> None:
    meeting = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)  # type: ignore[reportPrivateImportUsage]
    device = Device.prepare(kind, "auto", deterministic=False)
    dist.init_process_group(device.backend, store=meeting, rank=0, world_size=1)
    scenario = load("tiny", ["training.data_parallel=1", "rollout.temperature=1.0"])
    core = TrainerCore.build(scenario, Layout.of(scenario.training), device, write_model(folder / "model", kind)[0])
    trainer_step(core, scenario, packed(core, lengths_of("uniform", min(sizes))))  # what is compiled, once
    wait_for_go(folder)
    name = torch.cuda.get_device_name() if device.kind == "cuda" else "cpu"
    parameters = sum(p.numel() for p in core.model.parameters())
    report: dict[str, Any] = {"device": name, "dtype": str(device.dtype), "parameters": parameters}
    report["sizes"] = [
        row for tokens in sizes for name in ("uniform", "mixed") for row in measure(core, scenario, tokens, name)
    ]
    if device.kind == "cuda":
        report["profile"] = profiled(core, scenario, sizes[0])
    answer(folder, report)
    dist.destroy_process_group()


def measure(core: TrainerCore, scenario: Scenario, tokens: int, lengths: str) -> Iterator[dict[str, Any]]:
    """One row a form: the trainer's own step, and one with a plain loss over the same model and batch."""
    batch = packed(core, lengths_of(lengths, tokens))
    forms: dict[str, Callable[[], None]] = {
        "trainer": lambda: trainer_step(core, scenario, batch),
        "plain": lambda: plain_step(core, batch),
    }
    for form, step in forms.items():
        seconds, peak = timed(step, core.device)
        row = {"tokens": tokens, "lengths": lengths, "samples": len(batch.samples), "form": form}
        yield {**row, "tokens_a_second": round(tokens / seconds), "seconds": round(seconds, 4), "peak_gib": peak}


def lengths_of(kind: str, tokens: int) -> list[int]:
    """Lengths of samples that fill a step: all 512, or log-normal around it."""
    if kind == "uniform":
        return [SAMPLE] * (tokens // SAMPLE)
    draw, left, lengths = random.Random(0), tokens, []
    while left > 0:
        length = min(left, LONGEST, max(16, int(draw.lognormvariate(6.0, 0.8))))
        lengths.append(length if left - length >= 16 else left)
        left -= lengths[-1]
    return lengths


def packed(core: TrainerCore, lengths: list[int]) -> PackedBatch:
    """One micro-batch of random tokens. A sequence's last token is no input: it is one longer than what it takes."""
    draw = random.Random(1)
    responses = [length - min(PROMPT, length // 2) for length in lengths]
    rows = {
        "tokens": [[draw.randrange(core.shape.vocabulary) for _ in range(length + 1)] for length in lengths],
        "response_length": responses,
        "loss_mask": [[1] * n for n in responses],
        "advantage": [(-1.0) ** k for k in range(len(lengths))],
    }
    samples = [
        PlannedSample(row=k, rollout_id=k, sibling=0, weight=1 / (n * len(lengths)), opens_rollout=True)
        for k, n in enumerate(responses)
    ]
    return Packer(pa.table(rows), core.layout, core.place, core.device.torch_device).pack(samples)


def trainer_step(core: TrainerCore, scenario: Scenario, batch: PackedBatch) -> None:
    """What a trainer rank does in a step, less what it writes down."""
    count = len(batch.samples)
    loss = LossForward(
        shape=core.shape,
        training=scenario.training,
        temperature=scenario.rollout.temperature,
        rollouts_in_mean=count,
    )
    old = torch.full((len(batch.response_at),), -10.0, device=core.device.torch_device)
    item = TrainingBatch(batch=batch, old=old, advantages=batch.advantages[batch.sample_of])
    core.optimizer.zero_gradients()
    forward_backward(core.wrapped, loss, [item])
    unclipped_norm(core.model, core.optimizer)
    core.optimizer.step(count)


def plain_step(core: TrainerCore, batch: PackedBatch) -> None:
    """The same model and optimizer by a loop of its own: cross-entropy of all tokens over float32 logits."""
    core.optimizer.zero_gradients()
    logits: Tensor = run_model(core.wrapped[0], batch, core.shape)[0]
    F.cross_entropy(logits.float(), batch.labels).backward()
    core.wrapped[0].finish_grad_sync()
    core.optimizer.step(1)


def timed(step: Callable[[], None], device: Device) -> tuple[float, float | None]:
    """Median seconds of a step, and the most memory in GiB that PyTorch had meanwhile (None on a CPU)."""
    for _ in range(WARM_UP):
        step()
    _wait(device)
    if device.kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(MEASURED):
        started = time.perf_counter()
        step()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    peak = round(torch.cuda.max_memory_allocated() / GIB, 2) if device.kind == "cuda" else None
    return sorted(seconds)[MEASURED // 2], peak


def profiled(core: TrainerCore, scenario: Scenario, tokens: int) -> dict[str, float]:
    """Where one step's time on the device goes: milliseconds of the operations that take most of it."""
    batch = packed(core, lengths_of("uniform", tokens))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        trainer_step(core, scenario, batch)
        _wait(core.device)
    most = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:PROFILED_OPERATIONS]
    return {event.key: round(event.self_device_time_total / 1000, 2) for event in most}


def _wait(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [int(size) for size in sys.argv[3:]])
