import os

import pytest

from infra.errors import ConfigurationError
from infra.pool.inventory import Gpu, Inventory, inventory, label_of, visible
from infra.pool.labels import GpuLabels
from infra.pool.need import refuse_too_many_gpus
from infra.pool.worker_config import GpuJobConfiguration, unfit
from infra.scenario.load import load
from infra.settings import Settings
from infra.sglang.flags import within_memory


def h200(index: int) -> Gpu:
    return Gpu(id=f"GPU-{index}a0c-5c", index=index, accelerator="h200", memory_gib=139.8)


FOUR = Inventory(host="node7", gpus=tuple(h200(n) for n in range(4)), emulated=False)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
    ],
)
def test_a_product_name_gives_a_label(name: str, label: str):
    assert label_of(name) == label


@pytest.mark.parametrize(
    ("devices", "indices"),
    [(None, [0, 1, 2, 3]), ("", []), ("2,0", [0, 2]), ("GPU-1a0c", [1]), ("GPU-9", []), ("7", [])],
)
def test_what_is_not_visible_is_not_leased(devices: str | None, indices: list[int]):
    assert [gpu.index for gpu in visible(FOUR.gpus, devices)] == indices


def test_a_host_presents_logical_gpus_of_its_pool_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "2")
    monkeypatch.setenv("FANLINE_POOL", "my pool/4")
    have = inventory(Settings())  # type: ignore[call-arg]
    assert have.emulated and have.accelerator == "cpu"
    assert [gpu.id for gpu in have.gpus] == ["logical-my-pool-4-0", "logical-my-pool-4-1"]


@pytest.mark.parametrize(
    ("wanted", "gpus", "words"),
    [
        ({}, 4, None),
        ({"accelerator": "h200", "count": 4, "memory": 139}, 2, None),
        ({}, 8, "The run asks for 8 GPUs, host node7 has 4."),
        ({"count": 8}, 1, "The run asks for a host of 8 GPUs, host node7 has 4."),
        ({"accelerator": "b200"}, 1, "The run asks for accelerator b200, host node7 has h200."),
        ({"memory": 180}, 1, "The run asks for GPUs of 180 GiB, host node7 has 4 of 139.8 GiB."),
    ],
)
def test_a_host_refuses_what_it_lacks_with_both_sides(wanted: dict, gpus: int, words: str | None):
    assert unfit(GpuLabels(**wanted), gpus, FOUR) == words


@pytest.mark.parametrize("fields", [{"gpus": -1}, {"gpus": 65}, {"tight_memory": "perhaps"}])
def test_the_fields_of_a_run_have_bounds(fields: dict):
    with pytest.raises(ValueError, match=next(iter(fields))):
        GpuJobConfiguration(**fields)


@pytest.mark.parametrize("labels", [{"colour": "red"}, {"count": -1}, {"accelerator": "H 200"}])
def test_labels_that_are_none_are_refused(labels: dict):
    with pytest.raises(ValueError, match=next(iter(labels))):
        GpuJobConfiguration(labels=labels).wanted()


def test_a_scenario_that_needs_more_than_its_deployment_or_host_has_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
):
    scenario = load("tiny", ["training.data_parallel=4"])
    refuse_too_many_gpus(scenario, Settings())  # type: ignore[call-arg]  # without a pool nobody counts
    monkeypatch.setenv("FANLINE_LOGICAL_GPUS", "3")
    with pytest.raises(ConfigurationError, match=r"needs 4 GPUs.* has 3 logical ones"):
        refuse_too_many_gpus(scenario, Settings())  # type: ignore[call-arg]
    monkeypatch.setenv("FANLINE_GPUS", "2")
    with pytest.raises(ConfigurationError, match=r"needs 4 GPUs.* its deployment asks for 2"):
        refuse_too_many_gpus(scenario, Settings())  # type: ignore[call-arg]


@pytest.mark.parametrize(("fraction", "tight", "used"), [(0.7, True, 0.6), (0.5, True, 0.5), (0.7, False, 0.7)])
def test_where_memory_is_tight_the_engine_takes_less(fraction: float, tight: bool, used: float):
    settings = load("tiny", [f"engine.memory_fraction={fraction}"]).engine
    assert within_memory(settings, tight=tight).memory_fraction == used


def test_the_default_lease_folder_is_on_this_host_and_of_this_user():
    folder = Settings().lease_dir  # type: ignore[call-arg]
    assert folder.is_absolute() and str(os.getuid()) in folder.name
