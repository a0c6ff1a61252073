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

from infra.scenario.model import Training
from tasks.counter_assertion.evidence import Key
from tasks.counter_assertion.oracle.expected import OracleBatch, OracleSample
from tasks.counter_assertion.oracle.objective import Tokens, objective

FLOAT64_PARAMETERS = 200_000_000  # above this, weights and gradient in float64 would need more than 3.2 GB


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the step has to be.

    Args:
        terms: per-rollout loss terms, before the mean over rollouts, by rollout id.
        gradient: unclipped gradient by Hugging Face name.
        log_probs: [trained tokens] log-probs of logits / temperature.
        sizes: what each term adds up, without signs: terms may cancel, their rounding does not.
        norm: L2 norm of the gradient.
    """

    terms: dict[int, float]
    gradient: dict[str, Tensor]
    log_probs: dict[Key, np.ndarray]
    sizes: dict[int, float]
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


def compute(model_path: Path, parameters: int, batch: OracleBatch, temperature: float, training: Training) -> Reference:
    """Forward and backward of a step whose old and reference log-probs are the model's own: the first of a run.

    Args:
        model_path: folder in Hugging Face layout, as downloaded.
        parameters: float64 up to FLOAT64_PARAMETERS, float32 above.
        temperature: logits are divided by it.
        training: estimator, clips and coefficients of the loss.
    """
    transformers_logging.disable_progress_bar()
    dtype = torch.float64 if parameters <= FLOAT64_PARAMETERS else torch.float32
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype, attn_implementation="eager")
    model.eval()
    terms: dict[int, float] = {}
    sizes: dict[int, float] = {}
    log_probs: dict[Key, np.ndarray] = {}
    with _KeepDouble():
        for sample in batch.samples:
            rollout = sample.rollout_id
            terms.setdefault(rollout, 0.0)
            sizes.setdefault(rollout, 0.0)
            if not sample.trained_positions:
                continue
            tokens = _tokens(model, sample, temperature, training)
            loss = sample.weight * objective(tokens, training)
            loss.sum().backward()
            log_probs[rollout, sample.sibling] = tokens.log_probs.detach().double().numpy()
            terms[rollout] += batch.rollouts * float(loss.detach().double().sum())
            sizes[rollout] += batch.rollouts * float(loss.detach().double().abs().sum())
    gradient = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()}
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))
    name = str(dtype).removeprefix("torch.")
    return Reference(terms=terms, gradient=gradient, log_probs=log_probs, sizes=sizes, norm=norm, dtype=name)


def _tokens(model: Any, sample: OracleSample, temperature: float, training: Training) -> Tokens:
    """Logits are made for the positions before trained tokens only."""
    positions = torch.tensor(sample.trained_positions)
    ids = torch.tensor([sample.tokens])
    logits = model(ids, logits_to_keep=positions - 1, use_cache=False).logits[0]
    targets = ids[0, positions]
    scores = torch.log_softmax(logits / temperature, dim=-1)
    log_probs = scores.gather(-1, targets[:, None])[:, 0]
    own = log_probs.detach()
    return Tokens(
        log_probs=log_probs,
        entropy=-(scores.exp() * scores).sum(-1) if training.entropy_coefficient else torch.zeros_like(own),
        advantages=torch.tensor(sample.advantages, dtype=own.dtype),
        old=own,
        reference=own,
        engine=None if sample.engine is None else torch.tensor(sample.engine, dtype=own.dtype),
    )
