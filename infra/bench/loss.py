"""Time and peak memory of log-probs and entropy, forward and backward, beside plain PyTorch, in one run.

The logits come out of an output layer, as in training; its few weights and their gradients count on both sides.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infra.bench.growth import growth
from tasks.training.loss.log_probs import log_probs_and_entropy

SIZES = (128, 512)
VOCABULARY, HIDDEN = 151_936, 8
TEMPERATURE = 0.8
MIB = 2**20


def run(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """By tokens and dtype of the logits: seconds, and peak MiB with the logits themselves; on CUDA if it is there.

    `trainer` is what the trainer runs, `keeping_logits` the same where something else still reads the logits; `growth`
    is of the trainer's seconds.
    """
    by_dtype = {str(d): [_measure(size, d) for size in sizes] for d in (torch.float32, torch.bfloat16)}
    rows = [row for of_dtype in by_dtype.values() for row in of_dtype]
    grown = {name: growth([row["trainer"]["seconds"] for row in of_dtype]) for name, of_dtype in by_dtype.items()}
    return {"vocabulary": VOCABULARY, "sizes": rows, "growth": grown}


def _measure(tokens: int, dtype: torch.dtype) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    targets = torch.randint(VOCABULARY, (tokens,), generator=generator, device=device)
    forms = {
        "plain": _plain,
        "trainer": lambda x, y: log_probs_and_entropy(x, y, temperature=TEMPERATURE),
        "keeping_logits": lambda x, y: log_probs_and_entropy(x, y, temperature=TEMPERATURE, keep_logits=True),
    }
    hidden = torch.randn(tokens, HIDDEN, generator=generator, device=device).to(dtype).requires_grad_()
    layer = torch.randn(VOCABULARY, HIDDEN, generator=generator, device=device).to(dtype).requires_grad_()
    figures, gradients = {}, {}
    for form in forms.values():  # whatever a first call loads or compiles is nobody's peak or time
        _once(form, hidden[:16], layer, targets[:16])
    for name, form in forms.items():
        figures[name], gradients[name] = _once(form, hidden, layer, targets)
    worst = max(float((gradients[n] - gradients["plain"]).abs().max()) for n in forms)
    plain = figures["plain"]["peak_mib"]
    shares = {f"{n}_share_of_plain": round(figures[n]["peak_mib"] / plain, 3) for n in forms if n != "plain"}
    return {"tokens": tokens, "logits": str(dtype), "device": device, **figures, **shares, "gradient_difference": worst}


def _plain(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_p = (logits.float() / TEMPERATURE).log_softmax(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def _once(
    form: Callable[..., tuple[Tensor, Tensor]], hidden: Tensor, layer: Tensor, targets: Tensor
) -> tuple[dict, Tensor]:
    """Seconds and peak of one forward and backward pass, and a gradient to compare, relative to its largest entry."""
    hidden, layer = (x.detach().requires_grad_() for x in (hidden, layer))
    base = _reset_peak(hidden)
    started = time.perf_counter()
    log_probs, entropy = form(hidden @ layer.T, targets)
    (log_probs.sum() + 0.01 * entropy.sum()).backward()
    if hidden.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = _peak(hidden) - base
    assert hidden.grad is not None
    gradient = hidden.grad.float()
    return {"seconds": round(seconds, 4), "peak_mib": round(peak / MIB, 1)}, gradient / gradient.abs().max()


def _reset_peak(on: Tensor) -> int:
    """Start counting; gives the bytes in use now."""
    if on.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
    return _from_status("VmRSS")


def _peak(on: Tensor) -> int:
    return torch.cuda.max_memory_allocated() if on.is_cuda else _from_status("VmHWM")


def _from_status(name: str) -> int:
    line = next(li for li in Path("/proc/self/status").read_text().splitlines() if li.startswith(name))
    return int(line.split()[1]) * 1024
