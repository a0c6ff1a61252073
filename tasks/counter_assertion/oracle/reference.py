"""The step's loss terms and unclipped gradient from the plain transformers model, one sample after the other."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from tasks.counter_assertion.evidence import Key
from tasks.counter_assertion.oracle.expected import OracleBatch, OracleSample

FLOAT64_PARAMETERS = 200_000_000  # above this, weights and gradient in float64 would need more than 3.2 GB


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the step has to be.

    Args:
        terms: per-rollout loss terms, before the mean over rollouts, by rollout id.
        gradient: unclipped gradient by Hugging Face name.
        log_probs: [trained tokens] log-probs of logits / temperature.
        norm: L2 norm of the gradient.
    """

    terms: dict[int, float]
    gradient: dict[str, Tensor]
    log_probs: dict[Key, np.ndarray]
    norm: float
    dtype: str


class _KeepDouble(TorchFunctionMode):
    """transformers' norms and softmax go through float32 whatever the weights are; here float64 stays float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float or (func is Tensor.to and torch.float32 in (*args[1:], kwargs.get("dtype"))):
                return args[0]
            if kwargs.get("dtype") == torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def compute(model_path: Path, parameters: int, batch: OracleBatch, temperature: float, estimator: str) -> Reference:
    """Forward and backward of a step whose old log-probs are the model's own, so that every ratio is 1.

    At ratio 1 the clipped objective (arXiv:1707.06347 eq. 7) is -A and its gradient -A grad log p, whatever the clip
    range; so it is for GSPO's sequence ratio. CISPO's term is -A log p, with the same gradient.

    Args:
        model_path: folder in Hugging Face layout, as downloaded.
        parameters: float64 up to FLOAT64_PARAMETERS, float32 above.
        temperature: logits are divided by it.
        estimator: grpo, gspo or cispo.
    """
    transformers_logging.disable_progress_bar()
    dtype = torch.float64 if parameters <= FLOAT64_PARAMETERS else torch.float32
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, attn_implementation="eager")
    model.eval()
    terms: dict[int, float] = {}
    log_probs: dict[Key, np.ndarray] = {}
    with _KeepDouble():
        for sample in batch.samples:
            terms.setdefault(sample.rollout_id, 0.0)
            if not sample.trained_positions:
                continue
            log_p = _log_probs(model, sample, temperature)
            (-sample.advantage * sample.weight * log_p.sum()).backward()
            values = log_p.detach().double().numpy()
            log_probs[sample.rollout_id, sample.sibling] = values
            loss = -sample.advantage * (values if estimator == "cispo" else np.ones_like(values))
            terms[sample.rollout_id] += batch.rollouts * sample.weight * float(loss.sum())
    gradient = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()}
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))
    name = str(dtype).removeprefix("torch.")
    return Reference(terms=terms, gradient=gradient, log_probs=log_probs, norm=norm, dtype=name)


def _log_probs(model: Any, sample: OracleSample, temperature: float) -> Tensor:
    """[trained tokens] log-probs; logits are made for the positions before trained tokens only."""
    positions = torch.tensor(sample.trained_positions)
    ids = torch.tensor([sample.tokens])
    logits = model(ids, logits_to_keep=positions - 1, use_cache=False).logits[0]
    targets = ids[0, positions]
    return torch.log_softmax(logits / temperature, dim=-1).gather(-1, targets[:, None])[:, 0]
