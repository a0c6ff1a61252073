"""Tensors into the store as safetensors, by way of a file: a model of any size is never copied in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from infra.run import Run
from infra.store import ObjectRef


def publish_tensors(run: Run, key: str, tensors: Mapping[str, Tensor]) -> ObjectRef:
    """Publish named tensors; equal tensors give equal bytes. `{digest}` in the key stands for their sha256."""
    run.spool.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=run.spool) as folder:
        path = Path(folder) / "tensors.safetensors"
        save_file({name: t.contiguous() for name, t in tensors.items()}, path)
        return run.store.publish_file(key, path)
