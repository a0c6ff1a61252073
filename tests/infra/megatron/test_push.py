"""Weights out of the trainer, over HTTP and shared memory, into a real SGLang server."""

import asyncio
import base64
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from infra.errors import EngineUnavailable, TrainerUnavailable
from infra.megatron import weights
from infra.megatron.broadcast import Broadcast
from infra.megatron.trainer import MegatronTrainer
from infra.megatron.weights import by_folder, by_memory, load_request, parts, push
from infra.nodes import LOOPBACK
from infra.ports import free_port
from infra.ray_cluster import RayCluster
from infra.records.rollouts import read_table
from infra.records.sources import ModelRef
from infra.sglang.address import ServerAddress
from infra.sglang.engine import SGLangEngine
from infra.sglang.load_weights import CONTENTS, by_broadcast, message
from infra.sglang.weight_group import STAYS, Membership, WeightGroup
from tests.by_tensor import differ, pushed_into, same_as
from tests.infra.megatron.samples import make_run, write_plan, write_rollouts

ROWS = [0, 4, 9, 11]
NORM = "model.norm.weight"


@pytest.mark.trainer
@pytest.mark.engine
@pytest.mark.parametrize("how", ["memory", "disk", "distributed"])
def test_the_engine_has_the_trained_weights(
    how: str, tmp_path: Path, tiny_qwen2: Path, engine: SGLangEngine, ray_cluster: RayCluster
) -> None:
    """Twice: a distributed sync makes its group with the first one. In the second each tensor is looked at."""
    run = make_run(tmp_path, f"push-{how}")
    own = run.scenario.engine.model_copy(update={"weight_sync": how})
    run = replace(run, scenario=run.scenario.model_copy(update={"engine": own}))
    model = ModelRef(uri="", revision="", path=tiny_qwen2, digest="tiny", parameters=0)
    rollouts = [write_rollouts(run, iteration) for iteration in range(3)]
    tables = [read_table(run.store, made.table).to_pylist() for made in rollouts]
    plans = [write_plan(run, table, iteration) for iteration, table in enumerate(tables)]
    rows = tables[1]
    with MegatronTrainer(run, model, ray_cluster) as trainer:
        trained = trainer.train(rollouts[0], plans[0], publish_gradients=set())
        trainer.push_weights(engine.receivers, trained.weight_version)
        before = trainer.log_probs(rollouts[1].table, ROWS, 1.0)
        trained = trainer.train(rollouts[1], plans[1], publish_gradients=set())
        with pushed_into(engine.receivers):
            pushed = trainer.push_weights(engine.receivers, trained.weight_version)
        after = trainer.log_probs(rollouts[1].table, ROWS, 1.0)
        later = trainer.train(rollouts[2], plans[2], publish_gradients={0})
    version, seen = asyncio.run(look(engine, [(rows[r]["tokens"], rows[r]["response_length"]) for r in ROWS]))
    left = list(run.spool.glob("tmp*"))
    before_next = later.steps[0].weights_before
    assert before_next is not None
    named = load_file(tmp_path / "store" / before_next.key)
    other = {**named, NORM: torch.nextafter(named[NORM], named[NORM] + 1)}
    same_as(engine.receivers, named, tiny_qwen2, tmp_path / "same")
    found = differ(lambda: same_as(engine.receivers, other, tiny_qwen2, tmp_path / "other"))
    push(load_file(tiny_qwen2 / "model.safetensors"), engine.receivers, "default")

    assert pushed.digest == trained.weights_digest
    assert version == trained.weight_version
    assert distance(seen, after) < 1e-4 < distance(before, after) / 100
    assert found and not left


@pytest.mark.engine
@pytest.mark.parametrize("how", ["memory", "disk", "distributed"])
def test_weights_that_go_in_several_parts_are_whole(
    how: str, tmp_path: Path, tiny_qwen2: Path, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "PART_BYTES", 2**16)
    transport = {"memory": by_memory, "disk": by_folder(tmp_path), "distributed": Broadcast(LOOPBACK, "gloo", "parts")}
    named = load_file(tiny_qwen2 / "model.safetensors")
    for number in range(2):  # the second by the group of the first
        with pushed_into(engine.receivers):
            push(named, engine.receivers, f"parts-{number}", transport[how])
        version, _ = asyncio.run(look(engine, [([1, 2, 3], 1)]))
        assert version == f"parts-{number}"
    same_as(engine.receivers, named, tiny_qwen2, tmp_path / "same")
    push(named, engine.receivers, "default")


@pytest.mark.engine
def test_a_server_that_is_gone_costs_the_others_of_a_group_nothing(tiny_qwen2: Path, engine: SGLangEngine) -> None:
    named, process = load_file(tiny_qwen2 / "model.safetensors"), engine.process_id
    nobody = ServerAddress(LOOPBACK, free_port(), None)
    transport = Broadcast(LOOPBACK, "gloo", "gone")
    with pytest.raises(EngineUnavailable, match=f"{nobody.url}.* does not answer"):
        push(named, [*engine.receivers, nobody], "0001", transport)
    assert engine.answers() and engine.process_id == process
    push(named, engine.receivers, "0002", transport)
    assert asyncio.run(look(engine, [([1, 2, 3], 1)]))[0] == "0002"
    push(named, engine.receivers, "default")


@pytest.mark.engine
def test_servers_that_are_ready_too_late_are_no_push(
    tiny_qwen2: Path, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They answer well then, though nothing was loaded."""
    named, transport = load_file(tiny_qwen2 / "model.safetensors"), Broadcast(LOOPBACK, "gloo", "late")
    with monkeypatch.context() as patched:
        patched.setattr(WeightGroup, "begin", lambda self, number, failed: self._store.set(f"{number}", STAYS) or False)
        with pytest.raises(EngineUnavailable, match="Not every server was ready"):
            push(named, engine.receivers, "0001", transport)
    push(named, engine.receivers, "default", transport)
    assert asyncio.run(look(engine, [([1, 2, 3], 1)]))[0] == "default"


@pytest.mark.trainer
def test_ranks_outlive_an_engine_that_is_gone(tmp_path: Path, tiny_qwen2: Path, ray_cluster: RayCluster) -> None:
    """The sync is tried again with an engine that was started anew: by the same ranks."""
    run = make_run(tmp_path, "gone")
    model = ModelRef(uri="", revision="", path=tiny_qwen2, digest="tiny", parameters=0)
    nobody = ServerAddress(LOOPBACK, free_port(), None)
    with MegatronTrainer(run, model, ray_cluster) as trainer:
        digest = trainer.weights_digest()
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match=f"{nobody.url}.* does not answer"):
                trainer.push_weights([nobody], "0001")
        assert trainer.weights_digest() == digest
    with pytest.raises(TrainerUnavailable, match="ended before the push"):
        trainer.push_weights([nobody], "0002")


def test_what_says_that_a_broadcast_comes_needs_no_memory_of_this_host() -> None:
    member = Membership(name="g", rank=1, members=2, host=LOOPBACK, port=1, backend="gloo", seconds=1)
    contents = by_broadcast({"digest": "d", "tensors": []}, 64, member, 1)
    (sent,) = cast("list[str]", load_request([message(contents)], "0001")["serialized_named_tensors"])
    pickled = base64.b64decode(sent)
    assert b"rebuild_storage_filename" not in pickled
    ((name, told),) = pickle.loads(pickled)  # noqa: S301
    assert (name, json.loads(bytes(told.numpy()))) == (CONTENTS, contents)


def test_weights_for_another_host_go_in_parts_and_all_of_them_go() -> None:
    named = [(f"w{n}", torch.zeros(n)) for n in (3, 1, 9, 2, 2, 4)]
    assert [[name for name, _ in part] for part in parts(named, 16)] == [
        ["w3", "w1"],
        ["w9"],
        ["w2", "w2"],
        ["w4"],
    ]
    assert list(parts([], most=16)) == []


async def look(engine: SGLangEngine, sequences: list[tuple[list[int], int]]) -> tuple[str, list[list[float]]]:
    async with engine.client() as client:
        return await client.weight_version(), await client.prefill_log_probs(sequences)


def distance(ours: list[list[float]], theirs: list[list[float]]) -> float:
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in zip(ours, theirs, strict=True))
