"""Which GPUs each server of a run gets, and what does not fit."""

from pathlib import Path

import pytest

from infra.errors import ConfigurationError
from infra.ray_cluster import RayCluster
from infra.reference_stack import _refuse_out_of_place
from infra.run import Run
from infra.scenario.load import load
from infra.sglang import devices
from infra.sglang.devices import device_groups
from infra.sglang.engine import SGLangEngine


def run_of(*overrides: str) -> Run:
    return Run(run_id="r", scenario=load("tiny", list(overrides)), store_uri="/nowhere", spool=Path("/nowhere"))


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    monkeypatch.setattr(devices, "resolve", lambda scenario: "cuda")
    monkeypatch.setattr("infra.reference_stack.resolve", lambda scenario: "cuda")


@pytest.mark.parametrize(
    ("overrides", "groups"),
    [
        (["training.data_parallel=4"], [("GPU-a",), ("GPU-b",), ("GPU-c",), ("GPU-d",)]),
        (["training.data_parallel=2"], [("GPU-a",), ("GPU-b",)]),
        (["training.data_parallel=4", "engine.tensor_parallel=2"], [("GPU-a", "GPU-b"), ("GPU-c", "GPU-d")]),
        (["training.data_parallel=4", "engine.servers=1"], [("GPU-a",)]),
    ],
)
def test_a_server_for_each_gpu_of_the_run_or_group_of_them(four_gpus: None, overrides: list[str], groups: list):
    assert device_groups(run_of(*overrides)) == groups


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.data_parallel=2", "engine.servers=3"],
        ["training.data_parallel=1", "engine.tensor_parallel=2"],
    ],
)
def test_more_servers_than_gpus_are_refused_with_numbers(four_gpus: None, overrides: list[str]):
    with pytest.raises(ConfigurationError, match=r"do not fit on the [12] GPUs of the run"):
        device_groups(run_of(*overrides))


def test_on_a_cpu_servers_have_no_gpus():
    assert device_groups(run_of("device=cpu")) == [()]
    assert device_groups(run_of("device=cpu", "engine.servers=3")) == [(), (), ()]
    with pytest.raises(ConfigurationError, match=r"engine\.tensor_parallel"):
        device_groups(run_of("device=cpu", "engine.tensor_parallel=2"))


@pytest.mark.parametrize(
    ("setting", "labels", "words"),
    [
        ("engine.weight_sync=distributed", {}, "needs engines on other GPUs"),
        ("engine.weight_sync=disk", {"role": "engine"}, "needs engines on the trainer's own host"),
        ("engine.tensor_parallel=2", {"role": "engine"}, "a server has one GPU"),
    ],
)
def test_what_does_not_go_with_where_the_engine_runs_is_refused_before_it_starts(
    four_gpus: None, setting: str, labels: dict[str, str], words: str, tmp_path: Path
):
    cluster = RayCluster("r", 2, 2, tmp_path / "ray.log", "127.0.0.1:1" if labels else None, engine_labels=labels)
    with pytest.raises(ConfigurationError, match=words):
        _refuse_out_of_place(run_of(setting), cluster)


def test_a_server_without_its_memory_is_not_asked_and_takes_nothing_twice(tmp_path: Path):
    """Its health check generates a token, and it ends where it is asked for memory that it has."""
    run = run_of()
    engine = SGLangEngine(
        model_path=tmp_path, settings=run.scenario.engine, device="cpu", seed=0, log_path=tmp_path / "log"
    )
    engine._asleep = {"kv_cache"}
    assert engine.released and not engine.answers()  # by its process alone: nobody listens there
    engine.resume("weights")
    assert engine.released
