"""What has to be in place so that SGLang's server runs on the CPU, with seeded sampling."""

import multiprocessing
import os
import sys
from pathlib import Path

STAND_IN = Path(__file__).parent / "stand_in"


def before_import() -> None:
    """Let SGLang find the kernels' stand-in, in this process and its children only.

    SGLang's debug dumper imports Megatron-core where it is installed: a second of start time for nothing. Where it
    sees a GPU it takes its CUDA paths, whatever `--device` says.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.path.insert(0, str(STAND_IN))
    sys.modules["megatron"] = None  # type: ignore[assignment]  # the documented way to make an import fail


def after_import() -> None:
    """Let the server sample by seed on the CPU, and start its children as forks of this process."""
    _allow_seeded_sampling()
    _compare_weights()
    _fork_children()


def _allow_seeded_sampling() -> None:
    """SGLang refuses torch's attention in deterministic mode, and that mode brings batch-invariant CUDA kernels along.

    In float32 on the CPU the seeds alone gave equal tokens in any batch (tested in tests/infra/sglang).
    """
    from sglang.srt.layers import sampler
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import add_deterministic_attention_backend_choices

    from infra.sglang.cpu.murmur import murmur_hash32

    # SGLang 0.5.16 hashes in Triton only, 0.5.20 in a kernel of its wheel for the CPU, which is not published.
    sampler.murmur_hash32 = murmur_hash32
    add_deterministic_attention_backend_choices(["torch_native"])
    ModelRunner.maybe_enable_batch_invariant_mode = lambda self: None


def _compare_weights() -> None:
    """For `POST /weights_checker`: it copies to the GPU what it compares, and to the host what it keeps."""
    from sglang.srt.utils.weight_checker import WeightChecker
    from sglang.srt.utils.weight_checker_comparator import CHUNK_NUMEL, RawComparable

    def keep(self: WeightChecker) -> None:
        self._snapshot_tensors = {name: tensor.detach().clone() for name, tensor in self._model_state()}

    WeightChecker._snapshot = keep
    RawComparable.iter_chunks = lambda self: ((chunk, None) for chunk in self.tensor.reshape(-1).split(CHUNK_NUMEL))


def _fork_children() -> None:
    """SGLang asks for spawned children, each of which imports everything again: 20 s and 1 GB more on two cores."""
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler  # noqa: F401

    set_start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: set_start_method("fork", force=True)
