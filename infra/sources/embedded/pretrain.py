"""Make the embedded model: `python -m infra.sources.embedded.pretrain OUT` (under a minute on one core).

A Qwen2 of 0.3 M parameters learns `a+b=` with a below 30 and b below 10 by heart, and training stops while it is still
wrong often enough that sampled answers differ inside a prompt group: that is what a regression run on it needs.
"""

import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from transformers import Qwen2Config, Qwen2ForCausalLM

from infra.sources.digest import model_digest
from infra.sources.embedded import tokenizer

SEED = 20_260_101
TEMPERATURE = 0.9
STOP_AT = 0.75  # probability of a right answer, mean over all problems
MOST_STEPS = 3000
THREADS = 1  # as fast as two on matrices this small, and the result does not depend on the machine's cores
IGNORED = -100


def config() -> Qwen2Config:
    """Sizes that tensor (2), pipeline (2) and vocabulary splits divide evenly; head dimension 32 suits CUDA kernels."""
    return Qwen2Config(
        vocab_size=tokenizer.VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.END_ID,
        pad_token_id=tokenizer.PAD_ID,
    )


def problems() -> tuple[torch.Tensor, torch.Tensor]:
    """All sums as token ids and as labels of the answer's tokens (the rest ignored): both `[300, 7]`."""
    encode = tokenizer.build().encode
    texts = [(f"{a}+{b}=", f"{a + b}{tokenizer.END}") for a in range(30) for b in range(10)]
    ids = torch.full((len(texts), max(len(q + r) for q, r in texts)), tokenizer.PAD_ID)
    labels = torch.full_like(ids, IGNORED)
    for row, (question, answer) in enumerate(texts):
        whole, begin = encode(question + answer), len(question)
        ids[row, : len(whole)] = torch.tensor(whole)
        labels[row, begin : len(whole)] = ids[row, begin : len(whole)]
    return ids, labels


def right_answers(model: Qwen2ForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Probability of sampling each problem's whole right answer at TEMPERATURE: `[problems]`."""
    with torch.no_grad():
        log_probs = torch.log_softmax(model(input_ids=ids).logits[:, :-1] / TEMPERATURE, dim=-1)
    targets = labels[:, 1:]
    picked = log_probs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return picked.masked_fill(targets == IGNORED, 0).sum(-1).exp()


def pretrain() -> tuple[Qwen2ForCausalLM, dict[str, float]]:
    """Full-batch AdamW until right_answers reaches STOP_AT. Equal on every run on one machine."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    model = Qwen2ForCausalLM(config())
    ids, labels = problems()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    console = Console(stderr=True)
    for step in range(MOST_STEPS):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss.item() < 0.3 and step % 2:
            right = right_answers(model, ids, labels)
            console.print(f"step {step + 1}: loss {loss.item():.3f}, right {right.mean().item():.3f}", end="\r")
            if right.mean() >= STOP_AT:
                return model, {"steps": step + 1, "right": round(right.mean().item(), 4)}
    raise RuntimeError(f"not right on {STOP_AT:.0%} after {MOST_STEPS} steps")


def write(out: Path) -> dict[str, object]:
    """Train and save model, tokenizer and, beside the folder, its digest."""
    model, figures = pretrain()
    model.save_pretrained(out)
    tokenizer.save(out)
    parameters = sum(p.numel() for p in model.parameters())
    described = {"digest": model_digest(out), "parameters": parameters, "temperature": TEMPERATURE, **figures}
    out.with_suffix(".digest.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")
    return described


if __name__ == "__main__":
    print(json.dumps(write(Path(sys.argv[1]))))
