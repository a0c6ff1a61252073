"""The CPU kernels that SGLang's server calls, in plain PyTorch, under the module name that it imports them from."""

from sgl_kernel.cache_slots import assign_extend_cache_locs_cpu, assign_req_to_token_pool_cpu

__version__ = "0.0.0"
__all__ = ["assign_extend_cache_locs_cpu", "assign_req_to_token_pool_cpu"]


def __getattr__(name: str):
    """A kernel that is imported at start but only called by models and modes that are not used here."""
    if name.startswith("__") or not name.endswith("_cpu"):
        raise AttributeError(f"module 'sgl_kernel' has no attribute {name!r}")

    def absent(*_: object, **__: object):
        raise NotImplementedError(f"sgl_kernel.{name} has no implementation for the CPU in this installation")

    return absent
