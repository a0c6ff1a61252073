"""A training stack of its own, in plain PyTorch, that writes the records the checks read. It shares no loss, plan or
normalisation with the product, and every step of it is a method, so that a test can put a bug into exactly one of them.
"""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from infra.ledger import LedgerWriter
from infra.records.plan import LeftOut, MicroBatch, PlannedSample, Step, TrainingPlan
from infra.records.replay import Invariance, Replay, Variant
from infra.records.rollouts import RolloutsRef, log_probs_table, rollouts_table, sync_log_probs_table, write_table
from infra.records.sources import PROMPTS_SCHEMA, ModelRef, PromptsRef
from infra.records.training import StepResult, SyncResult, TrainedIteration
from infra.run import Run
from infra.scenario.load import validate
from infra.store import ObjectRef, canonical_json, sha256

VOCABULARY, PROMPT_TOKENS = 24, 4
PROMPTS = {f"row-{n}": str(n % 2) for n in range(16)}  # prompt id -> label; an answer is the parity of its tokens


def scenario(**sections: Any) -> Any:
    """4 groups of 4 rollouts, fan-out 1 to 3, 2 steps an iteration, dp 2; sections override single fields."""
    document: dict[str, Any] = {
        "name": "plain-loop",
        "seed": 3,
        "model": "embedded://tiny",
        "data": "embedded://parity",
        "rollout": {
            "iterations": 2,
            "prompts": 4,
            "rollouts_per_prompt": 4,
            "generate": "hooks.subagents.solve_in_parts",
            "temperature": 0.8,
            "max_response_tokens": 24,
        },
        "normalization": {},
        "training": {"global_batch_size": 8, "data_parallel": 2, "max_tokens_per_gpu": 24, "learning_rate": 1e-2},
        "checks": {"expected_fan_outs": [1, 2, 3]},
    }
    for name, fields in sections.items():
        document[name] = {**document[name], **fields} if isinstance(fields, dict) else fields
    return validate(document, "plain-loop")


def tiny_qwen2(folder: Path) -> ModelRef:
    """A random Qwen2 of 5,000 parameters in Hugging Face layout."""
    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    size = sum(p.numel() for p in model.parameters())
    return ModelRef(uri="embedded://random", revision="1", path=folder, digest="0" * 64, parameters=size)


@dataclass
class PlainLoop:
    """Runs every iteration of `run` and publishes what the checks need; override a method to put a bug in."""

    run: Run
    model_ref: ModelRef
    first: tuple[list[dict], TrainedIteration, ObjectRef] | None = None

    def __post_init__(self) -> None:
        self.policy = AutoModelForCausalLM.from_pretrained(self.model_ref.path, dtype=torch.float64).eval()
        self.engine = AutoModelForCausalLM.from_pretrained(self.model_ref.path, dtype=torch.float64).eval()
        self.first_weights = {name: w.clone() for name, w in self.policy.state_dict().items()}
        self.version = "v0"
        self.start_over()

    def start_over(self) -> None:
        """The policy as it was at the run's beginning, with an optimizer of its own."""
        self.policy.load_state_dict(self.first_weights)
        given = self.run.scenario.training
        matrices = [p for p in self.policy.parameters() if p.dim() > 1]
        vectors = [p for p in self.policy.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": given.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=given.learning_rate,
            betas=(given.adam_beta1, given.adam_beta2),
        )

    # What a test may break -------------------------------------------------------------------------------------

    def hook_of(self, index: int) -> str:
        return self.run.scenario.rollout.generate

    def drawn_hook(self, prompt_id: str) -> str:
        return self.run.scenario.rollout.generate

    def metadata(self, prompt_id: str) -> dict:
        """Of the source's row."""
        return {}

    def calls_of(self, index: int) -> list[tuple[str, int]]:
        return [("called", 1)]

    def rollout_id(self, index: int, sibling: int) -> int:
        return index

    def fan_out(self, index: int) -> int:
        return 1 + index % 3

    def row(self, i: int, group: int) -> int:
        """Of the source."""
        return group % len(PROMPTS)

    def text(self, prompt_id: str) -> str:
        return prompt_id

    def label(self, prompt_id: str) -> str:
        return PROMPTS[prompt_id]

    def grade(self, response: str, label: str) -> float:
        return float(response == label)

    def mask(self, index: int, length: int) -> list[int]:
        return [0 if t == 0 and index % 2 else 1 for t in range(length)]

    def stored(self, rows: list[dict]) -> list[dict]:
        return rows

    def voter(self, row: dict) -> Any:
        return row["rollout_id"]

    def split(self, rows: list[dict]) -> list[list[int]]:
        """Row numbers of each step."""
        ids, size = list(dict.fromkeys(r["rollout_id"] for r in rows)), self.run.scenario.training.global_batch_size
        steps = [ids[n : n + size] for n in range(0, len(ids) - size + 1, size)]
        return [[n for n, r in enumerate(rows) if r["rollout_id"] in step] for step in steps]

    def weight(self, row: dict, members: list[dict]) -> float:
        tokens: dict[int, int] = {}
        for r in members:
            tokens[r["rollout_id"]] = tokens.get(r["rollout_id"], 0) + sum(r["loss_mask"])
        return 1 / (max(1, sum(t > 0 for t in tokens.values())) * max(tokens[row["rollout_id"]], 1))

    def trained_mask(self, row: dict) -> list[int]:
        return row["loss_mask"]

    def token_loss(self, ratio: torch.Tensor, advantage: float) -> torch.Tensor:
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)

    def penalty(self, row: dict, log_probs: torch.Tensor) -> torch.Tensor | float:
        """[response_length] what is added to the policy's loss."""
        return 0.0

    def after_backward(self) -> None:
        """Between backward and the reading of the gradient."""

    def events(self, name: str, lines: list[dict]) -> list[dict]:
        return lines

    def copy_weights(self) -> None:
        self.engine.load_state_dict(self.policy.state_dict())

    # The loop --------------------------------------------------------------------------------------------------

    def go(self) -> tuple[Run, ModelRef, PromptsRef]:
        rows = [
            {"prompt_id": p, "prompt": p, "label": a, "metadata": json.dumps(self.metadata(p))}
            for p, a in PROMPTS.items()
        ]
        table = write_table(self.run.store, "prompts.parquet", pa.Table.from_pylist(rows, schema=PROMPTS_SCHEMA))
        prompts = PromptsRef(uri="embedded://parity", revision="1", table=table, rows=len(rows))
        scenario = self.run.scenario.model_dump(mode="json")
        opened = {"records_version": 1, "run": self.run.run_id, "scenario": scenario}
        self.run.store.publish_json(self.run.key("run.json"), opened)
        self.run.finish("download-prompts", 0, prompts.to_dict())
        for iteration in range(self.run.scenario.rollout.iterations):
            self.iterate(iteration)
        if self.first:
            self.compute_again(*self.first)
        return self.run, self.model_ref, prompts

    def iterate(self, i: int) -> None:
        made = self.generate(i)
        rows = self.stored(made)
        ref = self.publish_rollouts(i, rows, self.write_rollout_ledger(i, made))
        self.run.finish("rollout", i, ref.to_dict())
        rows = self.normalise(rows)
        rollouts = [{"rollout_id": r} for r in dict.fromkeys(r["rollout_id"] for r in rows)]
        ledger = self.segment("reward_normalization", i, [("normalised", rollouts)])
        table = write_table(self.run.store, self.run.key("iterations", i, "normalised.parquet"), rollouts_table(rows))
        ref = replace(ref, table=table, ledger=(*ref.ledger, ledger))
        self.run.finish("reward_normalization", i, ref.to_dict())
        trained = self.train(i, rows)
        self.first = self.first or (rows, trained, table)
        self.run.finish("training", i, trained.to_dict())
        self.run.finish("sync", i, self.sync(i, rows, trained).to_dict())

    def generate(self, i: int) -> list[dict]:
        rollout, rows = self.run.scenario.rollout, []
        for group in range(i * rollout.prompts, (i + 1) * rollout.prompts):
            for index in range(group * rollout.rollouts_per_prompt, (group + 1) * rollout.rollouts_per_prompt):
                siblings = [self.sample(i, group, index, k) for k in range(self.fan_out(index))]
                reward = self.grade(siblings[-1]["response"], siblings[-1]["label"])
                rows += [{**s, "reward": reward} for s in siblings]
        return rows

    def sample(self, i: int, group: int, index: int, sibling: int) -> dict:
        rng, prompt_id = random.Random(f"{self.run.scenario.seed}/{index}/{sibling}"), f"row-{self.row(i, group)}"
        tokens, length = [rng.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS + sibling)], rng.randrange(2, 8)
        first = len(tokens)
        tokens += [rng.randrange(VOCABULARY) for _ in range(length)]
        return {
            "iteration": i,
            "group_index": group,
            "index": index,
            "rollout_id": self.rollout_id(index, sibling),
            "sibling": sibling,
            "prompt_id": prompt_id,
            "epoch": 0,
            "attempt": 1,
            "prompt": self.text(prompt_id),
            "label": self.label(prompt_id),
            "response": str(sum(tokens[first:]) % 2),
            "tokens": tokens,
            "response_length": length,
            "loss_mask": self.mask(index, length),
            "status": "completed",
            "remove_sample": False,
            "advantage": None,
            "weight_version": self.version,
            "metadata": json.dumps(self.metadata(prompt_id)),
        }

    def write_rollout_ledger(self, i: int, rows: list[dict]) -> tuple[ObjectRef, ...]:
        groups: dict[int, dict] = {}
        for r in rows:
            group = groups.setdefault(r["group_index"], {k: r[k] for k in ("group_index", "prompt_id", "epoch")})
            group["hook"] = self.drawn_hook(r["prompt_id"])
            group["prompt_digest"] = sha256(r["prompt"].encode())
            group["indices"] = [*dict.fromkeys([*group.get("indices", []), r["index"]])]
        slots = {r["index"]: r["group_index"] for r in rows}
        calls = [
            (event, {"index": n, "attempt": attempt, "hook": self.hook_of(n), "group_index": g, "reason": "test"})
            for n, g in slots.items()
            for event, attempt in self.calls_of(n)
        ]
        generated = [
            {
                **{k: r[k] for k in ("rollout_id", "sibling", "index")},
                "tokens_digest": sha256(canonical_json(r["tokens"])),
            }
            for r in rows
        ]
        graded = [{k: r[k] for k in ("rollout_id", "sibling", "reward")} for r in rows]
        lines = [("drawn", list(groups.values())), *((event, [line]) for event, line in calls)]
        return (self.segment("rollout", i, [*lines, ("generated", generated), ("graded", graded)]),)

    def segment(self, stage: str, i: int, events: list[tuple[str, list[dict]]]) -> ObjectRef:
        with LedgerWriter(self.run.run_id, stage, i, self.run.spool) as ledger:
            for name in dict.fromkeys(name for name, _ in events):
                ledger.write_all(name, self.events(name, [line for n, lines in events if n == name for line in lines]))
            return ledger.seal(self.run.store)

    def publish_rollouts(self, i: int, rows: list[dict], ledger: tuple[ObjectRef, ...]) -> RolloutsRef:
        store, where = self.run.store, self.run.key("iterations", i)
        found = self.all_log_probs(self.engine, rows)
        log_probs = [{**_ids(r), "log_probs": x.tolist()} for r, x in zip(rows, found, strict=True)]
        return RolloutsRef(
            iteration=i,
            table=write_table(store, f"{where}/rollouts.parquet", rollouts_table(rows)),
            log_probs=write_table(store, f"{where}/engine.parquet", log_probs_table(log_probs)),
            ledger=ledger,
            samples=len(rows),
            rollouts=len({r["rollout_id"] for r in rows}),
            generated_tokens=sum(r["response_length"] for r in rows),
            weight_version=self.version,
        )

    def normalise(self, rows: list[dict]) -> list[dict]:
        out = []
        for row in rows:
            votes = {self.voter(r): r["reward"] for r in rows if r["group_index"] == row["group_index"]}
            x = torch.tensor(list(votes.values()), dtype=torch.float64)
            std = x.std().item() if len(x) > 1 else 0.0
            out.append({**row, "advantage": (row["reward"] - x.mean().item()) / (std + 1e-6) if std else 0.0})
        return out

    def temperature(self, model: Any) -> float:
        return self.run.scenario.rollout.temperature

    def log_probs(self, model: Any, row: dict) -> torch.Tensor:
        """[response_length]"""
        logits = model(torch.tensor([row["tokens"]])).logits[0]
        return _of_response(row, logits, self.temperature(model))

    @torch.no_grad()
    def all_log_probs(self, model: Any, rows: list[dict], temperature: float | None = None) -> list[torch.Tensor]:
        """[response_length] of each row, in one forward; what is padded comes last, where no token looks."""
        longest = max(len(r["tokens"]) for r in rows)
        padded = [r["tokens"] + [0] * (longest - len(r["tokens"])) for r in rows]
        logits = model(torch.tensor(padded)).logits
        return [_of_response(r, x, temperature or self.temperature(model)) for r, x in zip(rows, logits, strict=True)]

    def plan(self, i: int, rows: list[dict]) -> TrainingPlan:
        rule, steps = self.run.scenario.training, []
        for number, members in enumerate(self.split(rows)):
            ids = tuple(dict.fromkeys(rows[n]["rollout_id"] for n in members))
            chosen = [rows[n] for n in members]
            opened = {r["rollout_id"]: n for n, r in reversed(list(enumerate(chosen))) if sum(r["loss_mask"])}
            ranks: list[list[MicroBatch]] = [[] for _ in range(rule.data_parallel)]
            for n, (row_number, row) in enumerate(zip(members, chosen, strict=True)):
                weight = self.weight(row, chosen)
                planned = PlannedSample(
                    row=row_number, weight=weight, opens_rollout=opened.get(row["rollout_id"]) == n, **_ids(row)
                )
                batch = MicroBatch(samples=(planned,), tokens=len(row["tokens"]), cost=1.0)
                ranks[n % rule.data_parallel].append(batch)
            longest = max(map(len, ranks))
            dummy = PlannedSample(row=members[0], weight=0.0, dummy=True, **_ids(chosen[0]))
            fill = MicroBatch(samples=(dummy,), tokens=len(chosen[0]["tokens"]), cost=1.0)
            full = tuple(tuple(r) + (fill,) * (longest - len(r)) for r in ranks)
            steps.append(Step(index=number, rollout_ids=ids, rollouts_in_mean=len(opened), ranks=full))
        taken = {r for s in steps for r in s.rollout_ids}
        left = tuple(LeftOut(rollout_id=r, reason="trailing") for r in _rollouts(rows) if r not in taken)
        return TrainingPlan(
            iteration=i,
            global_batch_size=rule.global_batch_size,
            data_parallel=rule.data_parallel,
            token_cap=rule.max_tokens_per_gpu,
            loss_mean=rule.loss_mean,
            steps=tuple(steps),
            left_out=left,
        )

    def train(self, i: int, rows: list[dict]) -> TrainedIteration:
        plan = self.plan(i, rows)
        old = self.all_log_probs(self.policy, rows)
        steps = tuple(self.step(i, s, rows, old, publish=i == 0) for s in plan.steps)
        lines: dict[int, list[tuple[str, list[dict]]]] = {}
        for s in plan.steps:
            for rank, batches in enumerate(s.ranks):
                for number, batch in enumerate(batches):
                    for p in batch.samples:
                        line = {"step": s.index, "rank": rank, "micro_batch": number, "row": p.row, "weight": p.weight}
                        ids = {"rollout_id": p.rollout_id, "sibling": p.sibling}
                        lines.setdefault(rank, []).append(("dummy" if p.dummy else "trained", [{**line, **ids}]))
        store, where = self.run.store, self.run.key("iterations", i)
        log_probs = [{**_ids(r), "log_probs": o.tolist()} for r, o in zip(rows, old, strict=True)]
        return TrainedIteration(
            iteration=i,
            plan=store.publish_json(f"{where}/plan.json", plan.to_dict()),
            steps=steps,
            log_probs=write_table(store, f"{where}/trainer.parquet", log_probs_table(log_probs)),
            state=store.publish_json(f"{where}/state.json", {"iteration": i}),
            weights_digest=self.digest(),
            weight_version=f"v{i + 1}",
            ledger=tuple(self.segment("training", i, events) for events in lines.values()),
        )

    def step(self, i: int, step: Step, rows: list[dict], old: list[torch.Tensor], *, publish: bool) -> StepResult:
        self.optimizer.zero_grad()
        weights = {n: p.detach().float().clone() for n, p in self.policy.named_parameters()}
        terms, moved = dict.fromkeys(step.rollout_ids, 0.0), [torch.zeros(1, dtype=torch.float64)]
        for p in step.samples():
            row = rows[p.row]
            keep = torch.tensor(self.trained_mask(row), dtype=torch.bool)
            new = self.log_probs(self.policy, row)
            ratio = (new - old[p.row]).exp()
            loss = (p.weight * (self.token_loss(ratio, row["advantage"]) + self.penalty(row, new))[keep]).sum()
            loss.backward()
            terms[p.rollout_id] += step.rollouts_in_mean * loss.item()
            moved.append((ratio.detach() - 1)[keep])
        self.after_backward()
        gradient = {n: p.grad.float() for n, p in self.policy.named_parameters() if p.grad is not None}
        norm = sum((g.double() ** 2).sum().item() for g in gradient.values()) ** 0.5
        published = self.publish_gradient(i, step, gradient) if publish else None
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.run.scenario.training.clip_grad)
        self.update()
        errors = torch.cat(moved)
        return StepResult(
            iteration=i,
            step=step.index,
            loss=sum(terms.values()) / max(step.rollouts_in_mean, 1),
            rollout_terms=terms,
            gradient_norm=norm,
            learning_rate=self.run.scenario.training.learning_rate,
            clip_fraction=0.0,
            max_ratio_error=errors.abs().max().item(),
            approx_kl=-errors.log1p().mean().item(),
            entropy=0.0,
            tokens=len(errors) - 1,
            seconds=0.0,
            weights_digest=self.digest(),
            gradient=published,
            weights_before=self.publish_weights(i, step, weights) if publish and (i or step.index) else None,
        )

    def update(self) -> None:
        self.optimizer.step()

    def publish_gradient(self, i: int, step: Step, gradient: dict[str, torch.Tensor]) -> ObjectRef:
        data = save(gradient)
        return self.run.store.publish(f"gradients/{i}-{step.index}-{sha256(data)[:8]}", data)

    def publish_weights(self, i: int, step: Step, weights: dict[str, torch.Tensor]) -> ObjectRef:
        return self.run.store.publish(f"weights/{i}-{step.index}-{self.digest()[:8]}", save(weights))

    def compute_again(self, rows: list[dict], trained: TrainedIteration, table: ObjectRef) -> None:
        """The first iteration once more from the first weights, and its first step with samples in another order."""
        plan = TrainingPlan.from_dict(self.run.store.read_json(trained.plan))
        self.start_over()
        old = self.all_log_probs(self.policy, rows)
        permuted = self.step(0, self.reordered(plan.steps[0]), rows, old, publish=True)
        self.start_over()
        digests = tuple(self.step(0, s, rows, old, publish=False).weights_digest for s in plan.steps)
        replay = Replay(iteration=0, rollouts=table, plan=trained.plan, step_digests=digests)
        self.run.finish("replay", 0, replay.to_dict())
        if (own := trained.steps[0].gradient) and permuted.gradient:
            shape = Variant(name="permuted", change="samples reversed", gradient=permuted.gradient, against=own)
            record = Invariance(iteration=0, step=0, dtype="float32", variants=(shape,))
            self.run.finish("invariance", 0, record.to_dict())

    def reordered(self, step: Step) -> Step:
        return replace(step, ranks=tuple(tuple(reversed(batches)) for batches in reversed(step.ranks)))

    def digest(self) -> str:
        return sha256(b"".join(p.detach().numpy().tobytes() for p in self.policy.parameters()))

    def sync(self, i: int, rows: list[dict], trained: TrainedIteration) -> SyncResult:
        before = self.all_log_probs(self.engine, rows, 1.0)
        self.copy_weights()
        after = self.all_log_probs(self.policy, rows, 1.0)
        seen = self.all_log_probs(self.engine, rows, 1.0)
        self.version = trained.weight_version
        columns = {"engine": seen, "trainer": after, "before": before, "after": after}
        compared = [{**_ids(r), **{name: of[n].tolist() for name, of in columns.items()}} for n, r in enumerate(rows)]
        key = self.run.key("iterations", i, "sync.parquet")
        return SyncResult(
            iteration=i,
            weight_version=trained.weight_version,
            engine_version=trained.weight_version,
            weights_digest=trained.weights_digest,
            tensors=len(self.policy.state_dict()),
            bytes=0,
            seconds=0.0,
            sequences_compared=len(rows),
            max_log_prob_error=_largest(after, seen),
            moved_log_probs=_largest(after, before),
            log_probs=write_table(self.run.store, key, sync_log_probs_table(compared)),
        )


def _of_response(row: dict, logits: torch.Tensor, temperature: float) -> torch.Tensor:
    first, last = len(row["tokens"]) - row["response_length"], len(row["tokens"])
    table = (logits[first - 1 : last - 1] / temperature).log_softmax(-1)
    return table.gather(-1, torch.tensor(row["tokens"][first:])[:, None])[:, 0]


class _Ids(TypedDict):
    rollout_id: int
    sibling: int


def _ids(row: dict) -> _Ids:
    return {"rollout_id": row["rollout_id"], "sibling": row["sibling"]}


def _rollouts(rows: list[dict]) -> list[int]:
    return list(dict.fromkeys(r["rollout_id"] for r in rows))


def _largest(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))
