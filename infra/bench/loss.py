"""Time and peak memory of log-probs and entropy, forward and backward, beside plain PyTorch, in one run."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.training.loss.log_probs import log_probs_and_entropy

SIZES = (128, 512)
VOCABULARY = 151_936
TEMPERATURE = 0.8
MIB = 2**20


def run(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """By tokens and dtype of the logits: seconds, and peak MiB with the logits themselves; on CUDA if it is there."""
    rows = [_measure(size, dtype) for dtype in (torch.float32, torch.bfloat16) for size in sizes]
    return {"vocabulary": VOCABULARY, "sizes": rows}


def _measure(tokens: int, dtype: torch.dtype) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    targets = torch.randint(VOCABULARY, (tokens,), generator=generator, device=device)
    forms = {
        "plain": _plain,
        "chunked": lambda x, y: log_probs_and_entropy(x, y, temperature=TEMPERATURE),
        "chunked_reusing_logits": lambda x, y: log_probs_and_entropy(x, y, temperature=TEMPERATURE, reuse_logits=True),
    }
    figures, gradients = {}, {}
    for name, form in forms.items():
        logits = torch.randn(tokens, VOCABULARY, generator=generator.manual_seed(1), device=device).to(dtype)
        figures[name], gradients[name] = _once(form, logits, targets)
        del logits
    worst = max(float((gradients[n] - gradients["plain"]).abs().max()) for n in forms)
    plain = figures["plain"]["peak_mib"]
    shares = {f"{n}_share_of_plain": round(figures[n]["peak_mib"] / plain, 3) for n in forms if n != "plain"}
    return {"tokens": tokens, "logits": str(dtype), "device": device, **figures, **shares, "gradient_difference": worst}


def _plain(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_p = (logits.float() / TEMPERATURE).log_softmax(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def _once(form: Callable[..., tuple[Tensor, Tensor]], logits: Tensor, targets: Tensor) -> tuple[dict, Tensor]:
    """Seconds and peak of one forward and backward pass, and a part of the gradient to compare."""
    logits.requires_grad_()
    base, held = _reset_peak(logits), logits.numel() * logits.element_size()
    started = time.perf_counter()
    log_probs, entropy = form(logits, targets)
    (log_probs.sum() + 0.01 * entropy.sum()).backward()
    if logits.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = _peak(logits) - base + held
    assert logits.grad is not None
    return {"seconds": round(seconds, 4), "peak_mib": round(peak / MIB, 1)}, logits.grad[:8].float().clone()


def _reset_peak(logits: Tensor) -> int:
    """Start counting; gives the bytes in use now."""
    if logits.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
    return _from_status("VmRSS")


def _peak(logits: Tensor) -> int:
    return torch.cuda.max_memory_allocated() if logits.is_cuda else _from_status("VmHWM")


def _from_status(name: str) -> int:
    line = next(li for li in Path("/proc/self/status").read_text().splitlines() if li.startswith(name))
    return int(line.split()[1]) * 1024
