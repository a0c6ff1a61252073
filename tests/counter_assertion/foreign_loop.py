"""A loop of another stack in plain PyTorch: it imports nothing of fanline and writes the records that README describes.

Four prompts, four rollouts each, one to three siblings a rollout, two steps. A subclass puts a bug into one method.
"""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save
from transformers import Qwen2Config, Qwen2ForCausalLM

RUN, HOOK, ITERATION = "theirs", "theirs.solve", {"iteration": 0}
PROMPTS = [{"prompt_id": str(n), "prompt": f"prompt {n}", "label": "even", "metadata": "{}"} for n in range(4)]
COPIES, ROLLOUTS, BATCH, MICRO_BATCH, RATE = 4, 16, 8, 4, 0.003
PUBLISHED = {"publish_gradients": "all"}
SCENARIO = {
    "name": "theirs",
    "model": {"uri": "theirs"},
    "data": {"uri": "theirs"},
    "rollout": {"prompts": 4, "rollouts_per_prompt": COPIES, "max_response_tokens": 32, "generate": HOOK},
    "training": {"global_batch_size": BATCH, "micro_batch_size": MICRO_BATCH, "learning_rate": RATE, **PUBLISHED},
}
Record = dict[str, Any]
Sample = Record  # a row of the table of rollouts


def write_model(folder: Path) -> Path:
    torch.manual_seed(5)
    config = Qwen2Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    config.num_attention_heads, config.num_key_value_heads = 4, 2
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def log_probs(model: Qwen2ForCausalLM, sample: Sample) -> torch.Tensor:
    """[response_length]"""
    tokens = torch.tensor([sample["tokens"]])
    table = model(tokens).logits[0, :-1].log_softmax(-1)
    return table.gather(1, tokens[0, 1:, None])[-sample["response_length"] :, 0]


def digest(model: Qwen2ForCausalLM) -> str:
    return hashlib.sha256(save(model.state_dict())).hexdigest()


def ids(sample: Sample) -> Record:
    return {name: sample[name] for name in ("rollout_id", "sibling", "index")}


class ForeignLoop:
    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.trainer, self.engine, self.twin = (Qwen2ForCausalLM.from_pretrained(model).float() for _ in range(3))

    def put(self, name: str, data: bytes) -> Record:
        path = self.folder / "runs" / RUN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return {"key": f"runs/{RUN}/{name}", "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}

    def record(self, name: str, content: Record) -> Record:
        return self.put(f"{name}.json", json.dumps({**ITERATION, **content}).encode())

    def table(self, name: str, rows: list[Record]) -> Record:
        pq.write_table(pa.Table.from_pylist(rows), buffer := io.BytesIO())
        return self.put(f"{name}.parquet", buffer.getvalue())

    def ledger(self, stage: str, events: list[Record]) -> list[Record]:
        lines = [json.dumps({"run": RUN, "stage": stage, **ITERATION, "line": n, **e}) for n, e in enumerate(events)]
        return [self.put(f"{stage}.jsonl", "\n".join(lines).encode())]

    def stage(self, name: str, samples: list[Sample], events: list[Record]) -> Record:
        """The record of samples as a stage leaves them; gives back their table."""
        made: Record = {"table": self.table(name, samples), "ledger": self.ledger(name, events)}
        made["log_probs"] = self.table("engine", [{**ids(s), "log_probs": s["engine"]} for s in samples])
        counts = {"samples": len(samples), "rollouts": ROLLOUTS, "weight_version": "0"}
        counts["generated_tokens"] = sum(s["response_length"] for s in samples)
        self.record(f"iterations/0000/{name}", made | counts)
        return made["table"]

    @torch.no_grad()
    def generate(self) -> list[Sample]:
        """A sibling goes on from the tokens of the one before; the last one's answer, a parity, is graded."""
        draw, samples = torch.Generator().manual_seed(7), []
        for index in range(ROLLOUTS):
            group, siblings = index // COPIES, []
            tokens = [1, 2 + group]
            same: Sample = {"index": index, "rollout_id": index, "group_index": group, **ITERATION}
            same |= {"epoch": 0, "attempt": 1, "status": "completed", "remove_sample": False, "weight_version": "0"}
            for sibling in range(1 + index % 3):
                engine: list[float] = []
                for _ in range(3 + (index + sibling) % 4):
                    every = self.engine(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
                    tokens = [*tokens, int(torch.multinomial(every.exp(), 1, generator=draw))]
                    engine.append(float(every[tokens[-1]]))
                answer: Sample = {"response": ("even", "odd")[tokens[-1] % 2], "tokens": tokens, "engine": engine}
                answer |= {"response_length": len(engine), "loss_mask": [1] * len(engine), "advantage": None}
                siblings.append({**same, **PROMPTS[group], "sibling": sibling, **answer})
            samples += [{**s, "reward": float(siblings[-1]["response"] == s["label"])} for s in siblings]
        return samples

    def normalise(self, samples: list[Sample]) -> list[Sample]:
        """Over the rollouts of a prompt group: each counts once, however many siblings it has."""
        rewards = {s["index"]: s["reward"] for s in samples}
        groups = torch.tensor([rewards[n] for n in sorted(rewards)], dtype=torch.float64).view(-1, COPIES)
        scaled = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
        return [{**s, "advantage": float(scaled.flatten()[s["index"]])} for s in samples]

    def denominator(self, sample: Sample, siblings: list[Sample]) -> int:
        return sum(s["response_length"] for s in siblings) * BATCH

    def taken(self, samples: list[Sample], step: int) -> list[Sample]:
        return [s for s in samples if s["index"] // BATCH == step]

    def sync(self) -> None:
        self.engine.load_state_dict(self.trainer.state_dict())

    def plan(self, samples: list[Sample]) -> list[Record]:
        steps = []
        for n in range(ROLLOUTS // BATCH):
            rank: list[Record] = []
            for k, s in enumerate(taken := self.taken(samples, n)):
                weight = 1 / self.denominator(s, [t for t in taken if t["index"] == s["index"]])
                planned = {**ids(s), "row": samples.index(s), "weight": weight, "opens_rollout": s["sibling"] == 0}
                if k % MICRO_BATCH == 0:
                    rank.append({"samples": [], "tokens": 0, "cost": 1.0})
                rank[-1]["samples"].append(planned)
                rank[-1]["tokens"] += len(s["tokens"])
            rollouts = list(range(n * BATCH, (n + 1) * BATCH))
            steps.append({"index": n, "rollout_ids": rollouts, "rollouts_in_mean": BATCH, "ranks": [rank]})
        return steps

    def train(self, model: Qwen2ForCausalLM, samples: list[Sample], plan: list[Record]) -> list[Record]:
        adam, results = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98)), []
        self.old = [log_probs(model, s).detach() for s in samples]
        for n, step in enumerate(plan):
            before, terms, ratios = save(model.state_dict()), dict.fromkeys(step["rollout_ids"], 0.0), []
            for p in [p for batch in step["ranks"][0] for p in batch["samples"]]:
                ratio = (log_probs(model, samples[p["row"]]) - self.old[p["row"]]).exp()
                advantage = samples[p["row"]]["advantage"]
                loss = -p["weight"] * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
                loss.backward()
                terms[p["rollout_id"]] += loss.item() * BATCH
                ratios.append(ratio.detach())
            gradient = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
            norm, every = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0), torch.cat(ratios)
            adam.step()
            adam.zero_grad()
            result: Record = {**ITERATION, "step": n, "loss": sum(terms.values()) / BATCH, "rollout_terms": terms}
            result |= {"gradient_norm": norm.item(), "learning_rate": RATE, "entropy": 0.0, "seconds": 0.0}
            result |= {"max_ratio_error": (every - 1).abs().max().item(), "approx_kl": -every.log().mean().item()}
            result |= {"clip_fraction": ((every - 1).abs() > 0.2).float().mean().item(), "tokens": len(every)}
            result |= {"weights_digest": digest(model), "gradient": self.put(f"gradient-{n}", save(gradient))}
            results.append({**result, "weights_before": self.put(f"weights-{n}", before) if n else None})
        return results

    def go(self) -> None:
        self.record("run", {"records_version": 1, "run": RUN, "scenario": SCENARIO})
        source = {"uri": "theirs", "revision": "1", "rows": len(PROMPTS), "table": self.table("prompts", PROMPTS)}
        self.record("iterations/0000/download-prompts", source)
        samples, events = self.generate(), []
        for g, prompt in enumerate(PROMPTS):
            slots, call = [*range(g * COPIES, (g + 1) * COPIES)], {"group_index": g, "hook": HOOK}
            events.append({"event": "drawn", **call, "prompt_id": prompt["prompt_id"], "indices": slots})
            events += [{"event": "called", **call, "index": n, "attempt": 1} for n in slots]
        events += [{"event": event, **ids(s)} for event in ("generated", "graded") for s in samples]
        self.stage("rollout", samples, events)
        samples = self.normalise(samples)
        rollouts = [{"event": "normalised", "rollout_id": n} for n in range(ROLLOUTS)]
        table = self.stage("reward_normalization", samples, rollouts)
        steps = self.plan(samples)
        shape = {"global_batch_size": BATCH, "data_parallel": 1, "token_cap": None, "loss_mean": "rollout"}
        plan = self.record("plan", {**shape, "steps": steps})
        again = [step["weights_digest"] for step in self.train(self.twin, samples, steps)]
        self.record("iterations/0000/replay", {"rollouts": table, "plan": plan, "step_digests": again})
        trained: Record = {"plan": plan, "steps": self.train(self.trainer, samples, steps)}
        own = [{**ids(s), "log_probs": old.tolist()} for s, old in zip(samples, self.old, strict=True)]
        where = [(s["index"], k, p) for s in steps for k, b in enumerate(s["ranks"][0]) for p in b["samples"]]
        lines = [{"event": "trained", **p, "step": n, "rank": 0, "micro_batch": k} for n, k, p in where]
        trained |= {"log_probs": self.table("trainer", own), "ledger": self.ledger("training", lines)}
        trained |= {"state": self.put("state", save(self.trainer.state_dict())), "weight_version": "1"}
        self.record("iterations/0000/training", trained | {"weights_digest": digest(self.trainer)})
        self.sync()
        new, seen = (torch.cat([log_probs(m, s).detach() for s in samples]) for m in (self.trainer, self.engine))
        sync: Record = {"weight_version": "1", "engine_version": "1", "weights_digest": digest(self.trainer)}
        sync |= {"tensors": 0, "bytes": 0, "seconds": 0.0, "sequences_compared": len(samples)}
        sync["max_log_prob_error"] = (new - seen).abs().max().item()
        sync["moved_log_probs"] = (new - torch.cat(self.old)).abs().max().item()
        self.record("iterations/0000/sync", sync)
