"""The step's loss terms and unclipped gradient from the plain transformers model, one sample after the other."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from infra.errors import FanlineError
from infra.scenario.training import Training
from tasks.counter_assertion.evidence import Key, LogProbs
from tasks.counter_assertion.oracle.expected import OracleBatch, OracleSample
from tasks.counter_assertion.oracle.objective import Tokens, at_a_clip, objective

FLOAT32_EDGE = 1e-5  # what float32 forwards differ by in a ratio, ten times over
ONE_THREAD_PARAMETERS = 10_000_000
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
        ratio_error: largest |ratio - 1| of a trained token.
        tokens_at_a_clip: tokens that a rounding may put on either side of a clip, where the gradient jumps.
    """

    terms: dict[int, float]
    gradient: dict[str, Tensor]
    log_probs: dict[Key, np.ndarray]
    sizes: dict[int, float]
    norm: float
    dtype: str
    ratio_error: float
    tokens_at_a_clip: int


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


class OtherModel(FanlineError):
    """The records are not of the model that they are compared with."""


@dataclass(frozen=True, kw_only=True)
class Before:
    """Where a step starts that is not the run's first.

    Args:
        weights: before the step, by Hugging Face name, as published.
        old: [response tokens] log-probs before the iteration's first step; None where this is that step.
    """

    weights: Mapping[str, Tensor]
    old: LogProbs | None


@contextlib.contextmanager
def _few_threads(parameters: int) -> Iterator[None]:
    """One thread for a small model: more would spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if parameters <= ONE_THREAD_PARAMETERS else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compute(
    model_path: Path,
    parameters: int,
    batch: OracleBatch,
    temperature: float,
    training: Training,
    before: Before | None = None,
    *,
    dtype: torch.dtype | None = None,
    edge: float = FLOAT32_EDGE,
) -> Reference:
    """Forward and backward of a step. In the run's first, old and reference log-probs are the model's own.

    Args:
        model_path: folder in Hugging Face layout, as downloaded: the weights of the run's first step, and the reference
            policy of every KL.
        parameters: of the model.
        temperature: logits are divided by it.
        training: estimator, clips and coefficients of the loss.
        before: where a later step starts.
        edge: what a rounding of the trainer's ratios comes to, relative.
        dtype: by default float64 up to FLOAT64_PARAMETERS parameters, float32 above.
    Raises:
        OtherModel: tokens or weights do not fit this model.
    """
    dtype = dtype or (torch.float64 if parameters <= FLOAT64_PARAMETERS else torch.float32)
    model = model_of(model_path, dtype)
    _refuse_other_tokens(model, batch)
    reference = None
    if before is not None:
        # The policy of a KL is the run's first one, whatever the policy is by now.
        reference = model_of(model_path, dtype) if training.kl_coefficient else None
        model.load_state_dict(_with_tied(model, before.weights))
    told = _Told(batch, edge)
    with _few_threads(parameters), _KeepDouble():
        for sample in batch.samples:
            if not sample.trained_positions:
                continue
            tokens = _tokens(model, sample, temperature, training)
            tokens = _at_a_later_step(tokens, sample, before, reference, temperature, training)
            loss = sample.weight * objective(tokens, training)
            loss.sum().backward()
            told.add(sample, tokens, loss, training)
    gradient = {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in model.named_parameters()}
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))
    name = str(dtype).removeprefix("torch.")
    return Reference(
        terms=told.terms,
        gradient=gradient,
        log_probs=told.log_probs,
        sizes=told.sizes,
        norm=norm,
        dtype=name,
        ratio_error=told.ratio_error,
        tokens_at_a_clip=told.tokens_at_a_clip,
    )


class _Told:
    """Collects what is told of the samples one by one."""

    def __init__(self, batch: OracleBatch, edge: float):
        self.edge = edge
        self.rollouts = batch.rollouts
        self.terms = dict.fromkeys((s.rollout_id for s in batch.samples), 0.0)
        self.sizes = dict(self.terms)
        self.log_probs: dict[Key, np.ndarray] = {}
        self.ratio_error, self.tokens_at_a_clip = 0.0, 0

    def add(self, sample: OracleSample, tokens: Tokens, loss: Tensor, training: Training) -> None:
        shift = (tokens.log_probs - tokens.old).detach().double()
        self.log_probs[sample.rollout_id, sample.sibling] = tokens.log_probs.detach().double().numpy()
        self.terms[sample.rollout_id] += self.rollouts * float(loss.detach().double().sum())
        self.sizes[sample.rollout_id] += self.rollouts * float(loss.detach().double().abs().sum())
        self.ratio_error = max(self.ratio_error, float(shift.exp().sub(1).abs().max()))
        self.tokens_at_a_clip += int(at_a_clip(tokens, training, self.edge).sum())


def model_of(path: Path, dtype: torch.dtype) -> Any:
    """The plain transformers model of a folder, for evaluation."""
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
    # transformers leaves the padding token's embedding without a gradient. Nothing is padded here: where the token
    # occurs (many models pad with their end-of-text token, and a sibling may go on behind one) it is an input like any.
    embeddings: Any = model.get_input_embeddings()
    embeddings.padding_idx = None
    return model


def _with_tied(model: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All entries of the model's state: a head that shares the embedding's weights may be published or not."""
    missing = set(model.state_dict()) - set(weights)
    embedding = next((n for n in weights if n.endswith("embed_tokens.weight")), None)
    tied = {n: weights[embedding] for n in missing if n == "lm_head.weight" and embedding}
    whole, own = {**weights, **tied}, model.state_dict()
    wrong = sorted(n for n in set(own) | set(whole) if n not in own or n not in whole or own[n].shape != whole[n].shape)
    if wrong:
        raise OtherModel(f"it starts from weights that are not of this model: {', '.join(wrong[:3])}", ids=wrong[:3])
    return whole


def _refuse_other_tokens(model: Any, batch: OracleBatch) -> None:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    for sample in batch.samples:
        if not all(0 <= token < vocabulary for token in sample.tokens):
            raise OtherModel(
                f"rollout {sample.rollout_id} has tokens outside of this model's vocabulary of {vocabulary}",
                ids=[sample.rollout_id],
            )


def _at_a_later_step(
    tokens: Tokens, sample: OracleSample, before: Before | None, reference: Any, temperature: float, training: Training
) -> Tokens:
    if before is None:
        return tokens
    if before.old is not None:
        old = before.old[sample.rollout_id, sample.sibling][np.asarray(sample.mask, dtype=bool)]
        tokens = replace(tokens, old=torch.as_tensor(old, dtype=tokens.old.dtype))
    if reference is not None:
        with torch.no_grad():
            tokens = replace(tokens, reference=_tokens(reference, sample, temperature, training).log_probs)
    return tokens


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
