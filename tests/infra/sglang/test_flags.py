from pathlib import Path

import pytest

from infra.scenario.model import Engine
from infra.sglang.address import ServerAddress
from infra.sglang.flags import Device, dtype_on, server_arguments, server_environment


def _arguments(device: Device = "cpu", deterministic=True, **settings) -> list[str]:
    return server_arguments(
        Engine(**settings),
        model_path=Path("/models/a"),
        served_name="fanline-1",
        device=device,
        dtype=dtype_on(device),
        deterministic=deterministic,
        seed=7,
        address=ServerAddress("127.0.0.1", 4711),
    )


def _value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_server_listens_on_the_loopback_address_only(device):
    arguments = _arguments(device)
    assert _value(arguments, "--host") == "127.0.0.1"
    assert _value(arguments, "--port") == "4711"


@pytest.mark.parametrize(
    ("device", "backend", "dtype"), [("cpu", "torch_native", "float32"), ("cuda", "triton", "bfloat16")]
)
def test_backends_and_dtype_follow_the_device(device, backend, dtype):
    arguments = _arguments(device)
    assert _value(arguments, "--device") == device
    assert _value(arguments, "--attention-backend") == backend
    assert _value(arguments, "--dtype") == dtype


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_deterministic_mode_is_asked_for_only_when_wanted(device):
    assert "--enable-deterministic-inference" in _arguments(device)
    assert "--enable-deterministic-inference" not in _arguments(device, deterministic=False)


def test_cache_size_is_given_in_tokens_on_the_cpu_and_as_a_share_of_memory_on_cuda():
    cpu, cuda = _arguments(max_total_tokens=512), _arguments("cuda", memory_fraction=0.6)
    assert _value(cpu, "--max-total-tokens") == "512"
    assert "--mem-fraction-static" not in cpu
    assert _value(cuda, "--mem-fraction-static") == "0.6"
    assert "--max-total-tokens" not in cuda


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, ["1"]), (32, ["1", "8", "32"]), (1024, ["1", "8", "64", "256", "1024"])]
)
def test_decode_graphs_reach_the_largest_batch(most, sizes):
    arguments = _arguments("cuda", max_running_requests=most)
    start = arguments.index("--cuda-graph-bs-decode") + 1
    assert arguments[start : start + len(sizes)] == sizes
    assert arguments[start + len(sizes)].startswith("--")


def test_the_environment_never_asks_a_hub_and_keeps_what_was_there():
    cpu, cuda = (
        server_environment({"PATH": "/bin"}, device, "float32", ServerAddress("127.0.0.1", 4711))
        for device in ("cpu", "cuda")
    )
    assert cpu["PATH"] == cuda["PATH"] == "/bin"
    assert cpu["HF_HUB_OFFLINE"] == cuda["HF_HUB_OFFLINE"] == "1"
    assert cpu["SGLANG_USE_CPU_ENGINE"] == "1"
    assert cpu["OMP_WAIT_POLICY"] == "PASSIVE"
    assert not {"SGLANG_USE_CPU_ENGINE", "OMP_WAIT_POLICY"} & set(cuda)


def test_a_server_gets_its_own_gpus_and_no_others():
    address = ServerAddress("127.0.0.1", 4711, devices=("2", "GPU-7"))
    arguments = server_arguments(
        Engine.model_validate({"max_total_tokens": 512}),
        model_path=Path("/models/a"),
        served_name="fanline-1",
        device="cuda",
        dtype="bfloat16",
        deterministic=True,
        seed=7,
        address=address,
    )
    assert _value(arguments, "--tp-size") == "2" and _value(arguments, "--max-total-tokens") == "512"
    inherited = {"CUDA_VISIBLE_DEVICES": "0,1,2,GPU-7"}
    assert server_environment(inherited, "cuda", "bfloat16", address)["CUDA_VISIBLE_DEVICES"] == "2,GPU-7"
    assert "--tp-size" not in _arguments("cuda")
    given = server_environment({"NCCL_NVLS_ENABLE": "1"}, "cuda", "bfloat16", address)
    assert (given["NCCL_NVLS_ENABLE"], given["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"]) == ("0", "false")
