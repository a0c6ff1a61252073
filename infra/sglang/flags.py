"""The command line and environment of SGLang's server, from the scenario's settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from infra.scenario.model import Engine
from infra.sglang.address import KEY_VARIABLE, ServerAddress
from infra.sglang.load_weights import LOADER

DECODE_GRAPH_SIZES = (1, 8, 64, 256, 1024)
TIGHT_MEMORY_FRACTION = 0.6
CPU_CACHE_TOKENS = 16_384

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]


def dtype_on(device: Device) -> Dtype:
    """What `auto` means: bfloat16 is slow on a CPU."""
    return "float32" if device == "cpu" else "bfloat16"


def within_memory(settings: Engine, *, tight: bool) -> Engine:
    """The settings on this deployment: where memory is tight the engine takes at most 0.6 of a GPU's."""
    fraction = min(settings.memory_fraction, TIGHT_MEMORY_FRACTION)
    return settings.model_copy(update={"memory_fraction": fraction}) if tight else settings


def server_arguments(
    settings: Engine,
    *,
    model_path: Path,
    served_name: str,
    device: Device,
    dtype: Dtype,
    deterministic: bool,
    seed: int,
    address: ServerAddress,
) -> list[str]:
    """Arguments of `infra.sglang.launch`.

    Requests carry token ids and stop by the model's end-of-text id or by given ids, so the server loads no tokenizer.
    `served_name` is what the server calls itself: a client can tell it from another server on the same port.
    """
    return [
        *("--model-path", str(model_path.resolve()), "--served-model-name", served_name),
        *("--device", device, "--dtype", dtype, "--random-seed", str(seed)),
        *("--host", address.host, "--port", str(address.port)),
        *("--max-running-requests", str(settings.max_running_requests)),
        *("--sampling-backend", "pytorch", "--grammar-backend", "none"),
        *("--custom-weight-loader", LOADER),
        *("--skip-tokenizer-init", "--skip-server-warmup", "--log-level-http", "warning"),
        *(["--enable-deterministic-inference"] if deterministic else []),
        *(["--tp-size", str(len(address.devices))] if len(address.devices) > 1 else []),
        *(_cpu(settings) if device == "cpu" else _cuda(settings)),
    ]


def _cpu(settings: Engine) -> list[str]:
    return [
        *("--attention-backend", "torch_native", "--disable-overlap-schedule", "--sleep-on-idle"),
        *("--max-total-tokens", str(settings.max_total_tokens or CPU_CACHE_TOKENS)),
    ]


def _cuda(settings: Engine) -> list[str]:
    """Prefill graphs are left out and decode graphs are few: they are most of the start time on CUDA."""
    largest = settings.max_running_requests
    sizes = [*(size for size in DECODE_GRAPH_SIZES if size < largest), largest]
    return [
        *("--attention-backend", "triton", "--disable-prefill-cuda-graph"),
        *("--cuda-graph-bs-decode", *map(str, sizes)),
        *("--mem-fraction-static", str(settings.memory_fraction), "--enable-memory-saver"),
        *(["--max-total-tokens", str(settings.max_total_tokens)] if settings.max_total_tokens else []),
    ]


def server_environment(
    inherited: Mapping[str, str], device: Device, dtype: Dtype, address: ServerAddress
) -> dict[str, str]:
    """The server's environment: the model is a local folder, so nothing may be asked of a hub; its GPUs and no others.

    The key goes this way because a command line can be read by everybody on the host.
    """
    common = {**inherited, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if address.key is not None:
        common[KEY_VARIABLE] = address.key
    if address.devices:
        common["CUDA_VISIBLE_DEVICES"] = ",".join(address.devices)
    if device == "cpu":
        # Compiling costs more than it gives at this size. Threads that spin while they wait take the cores from the
        # trainer and from each other: on two busy cores generation was ten times slower with them.
        return {
            **common,
            "SGLANG_USE_CPU_ENGINE": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    # Trainer ranks load on the same GPUs meanwhile: that one has less free memory than another says nothing.
    uneven = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"} if len(address.devices) > 1 else {}
    exact = {"TRITON_F32_DEFAULT": "ieee"} if dtype == "float32" else {}  # Triton multiplies float32 in TF32 else
    return {**common, **exact, **uneven, "NCCL_NVLS_ENABLE": "0", "SGLANG_IS_FLASHINFER_AVAILABLE": "false"}
