"""A seeded random model, rollouts table and step plan, made by hand: no code of the planner or the engine."""

import random
from pathlib import Path

from infra.records.plan import MicroBatch, PlannedSample, Step, TrainingPlan
from infra.records.rollouts import RolloutsRef, rollouts_table, write_table
from infra.records.sources import ModelRef
from infra.run import Run
from infra.scenario.load import validate
from infra.store import ObjectRef

VOCABULARY = 127
TEMPERATURE = 0.8
FAN_OUTS = (1, 2, 3, 1, 2, 3, 1, 3)
ROLLOUTS_PER_STEP = 4


def write_model(folder: Path, family: str = "qwen2", *, tied: bool = False, seed: int = 0) -> ModelRef:
    """A random model of 4 layers with grouped key-value heads, its norms and biases moved off their usual values."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    known = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    make_config, make_model = known[family]
    config = make_config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0},
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_model(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or name.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder)
    parameters = sum(p.numel() for p in model.parameters())
    return ModelRef(uri=str(folder), revision="0", path=folder, digest=f"{family}-{tied}-{seed}", parameters=parameters)


def make_run(folder: Path, run_id: str = "run", **training: object) -> Run:
    """A run whose trainer takes the hand-made plan."""
    settings = {"global_batch_size": ROLLOUTS_PER_STEP, "data_parallel": 2, "max_tokens_per_gpu": 64}
    document = {
        "name": "by-hand",
        "model": "embedded://tiny",
        "data": "embedded://arithmetic",
        "device": "cpu",
        "rollout": {"prompts": 4, "rollouts_per_prompt": 2, "max_response_tokens": 16, "temperature": TEMPERATURE},
        "training": {**settings, "learning_rate": 1e-2, "deadline_seconds": 120, **training},
    }
    return Run(
        run_id=run_id, scenario=validate(document, "test"), store_uri=str(folder / "store"), spool=folder / "spool"
    )


def write_rollouts(run: Run, iteration: int = 0) -> RolloutsRef:
    """Rollouts of fan-outs 1 to 3 and unequal lengths, with masked tokens and advantages of both signs."""
    draw = random.Random(1000 + iteration)
    rows = []
    for rollout_id, fan_out in enumerate(FAN_OUTS):
        advantage = draw.choice([-1, 1]) * draw.uniform(0.5, 2.0)
        for sibling in range(fan_out):
            prompt, response = draw.randrange(2, 9), draw.randrange(2, 14)
            rows.append(
                {
                    "iteration": iteration,
                    "group_index": rollout_id // 2,
                    "index": rollout_id,
                    "rollout_id": rollout_id,
                    "sibling": sibling,
                    "prompt_id": str(rollout_id // 2),
                    "epoch": 0,
                    "attempt": 1,
                    "prompt": "",
                    "label": None,
                    "response": "",
                    "tokens": [draw.randrange(VOCABULARY) for _ in range(prompt + response)],
                    "response_length": response,
                    "loss_mask": [1] + [int(draw.random() < 0.8) for _ in range(response - 1)],
                    "status": "completed",
                    "remove_sample": False,
                    "reward": 0.0,
                    "advantage": advantage,
                    "weight_version": str(iteration),
                    "metadata": "{}",
                }
            )
    table = write_table(run.store, run.key("iterations", iteration, "rollouts.parquet"), rollouts_table(rows))
    return RolloutsRef(
        iteration=iteration,
        table=table,
        log_probs=table,
        ledger=(),
        samples=len(rows),
        rollouts=len(FAN_OUTS),
        generated_tokens=0,
        weight_version=str(iteration),
    )


def write_plan(run: Run, rows: list[dict], iteration: int = 0) -> ObjectRef:
    """Two steps of four rollouts; samples dealt to the ranks in turn (siblings apart), in micro-batches of two.

    The rank with fewer micro-batches gets a dummy.
    """
    ranks = run.scenario.training.data_parallel
    steps = []
    for index in range(len(FAN_OUTS) // ROLLOUTS_PER_STEP):
        ids = tuple(range(index * ROLLOUTS_PER_STEP, (index + 1) * ROLLOUTS_PER_STEP))
        tokens = {i: sum(sum(r["loss_mask"]) for r in rows if r["rollout_id"] == i) for i in ids}
        planned = [
            PlannedSample(
                row=number,
                rollout_id=row["rollout_id"],
                sibling=row["sibling"],
                weight=1 / (len(ids) * tokens[row["rollout_id"]]),
                opens_rollout=row["sibling"] == 0,
            )
            for number, row in enumerate(rows)
            if row["rollout_id"] in ids
        ]
        shares = [[planned[r::ranks][k : k + 2] for k in range(0, len(planned[r::ranks]), 2)] for r in range(ranks)]
        multiple = run.scenario.training.microbatch_multiple
        most = -(-(max(map(len, shares)) + 1) // multiple) * multiple
        batches = [[*share, *[[_dummy(planned[0])]] * (most - len(share))] for share in shares]
        made = tuple(tuple(MicroBatch(samples=tuple(b), tokens=0, cost=0.0) for b in share) for share in batches)
        steps.append(Step(index=index, rollout_ids=ids, rollouts_in_mean=len(ids), ranks=made))
    plan = TrainingPlan(
        iteration=iteration,
        global_batch_size=ROLLOUTS_PER_STEP,
        data_parallel=ranks,
        token_cap=64,
        loss_mean="rollout",
        steps=tuple(steps),
    )
    return run.store.publish_json(run.key("iterations", iteration, "plan.json"), plan.to_dict())


def _dummy(sample: PlannedSample) -> PlannedSample:
    return PlannedSample(row=sample.row, rollout_id=sample.rollout_id, sibling=sample.sibling, weight=0.0, dummy=True)
