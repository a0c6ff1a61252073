"""The loss of a step computed plainly: transformers in float64, one sequence at a time, denominators from the masks."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.gradients import grad_of


@dataclass(frozen=True, kw_only=True)
class ReferenceStep:
    """Per-rollout terms by rollout id, unclipped gradient and log-probs by (rollout id, sibling), all in float64."""

    terms: dict[int, float]
    gradient: dict[str, torch.Tensor]
    log_probs: dict[tuple[int, int], torch.Tensor]


def first_step(folder: Path, rows: list[dict], rollout_ids: list[int], temperature: float) -> ReferenceStep:
    """Of a step whose old log-probs are the model's own (ratio 1): the clip holds nothing back."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    terms, log_probs = {}, {}
    for rollout_id in rollout_ids:
        siblings = [r for r in rows if r["rollout_id"] == rollout_id]
        trained = sum(sum(r["loss_mask"]) for r in siblings)
        total = torch.zeros((), dtype=torch.float64)
        for row in siblings:
            new = _response_log_probs(model, row, temperature)
            ratio = (new - new.detach()).exp()
            total = total - (ratio * row["advantage"] * torch.tensor(row["loss_mask"])).sum()
            log_probs[rollout_id, row["sibling"]] = new.detach()
        terms[rollout_id] = total / trained
    (sum(terms.values()) / len(rollout_ids)).backward()  # type: ignore[union-attr]
    gradient = {name: grad_of(p) for name, p in model.named_parameters()}
    return ReferenceStep(terms={k: v.item() for k, v in terms.items()}, gradient=gradient, log_probs=log_probs)


def _response_log_probs(model: torch.nn.Module, row: dict, temperature: float) -> torch.Tensor:
    tokens = torch.tensor(row["tokens"])
    scores = model(tokens[None]).logits[0] / temperature
    chosen = scores.log_softmax(-1)[:-1].gather(-1, tokens[1:, None])[:, 0]
    return chosen[-row["response_length"] :]


def largest_relative_error(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Over the tensors: the largest difference relative to the tensor's own largest entry, and where.

    A bias of the keys has no gradient but rounding (softmax does not see it), so it is measured against the largest
    gradient of the layer's other biases.
    """
    assert set(found) == set(wanted)
    errors = []
    for name, tensor in wanted.items():
        scale = wanted[name.replace("k_proj.bias", "q_proj.bias")].abs().max()
        errors.append((((found[name].double() - tensor).abs().max() / scale).item(), name))
    return max(errors)
