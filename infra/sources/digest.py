"""Digests of files and of model folders."""

import hashlib
import json
import struct
from pathlib import Path

from infra.errors import ConfigurationError
from infra.store import canonical_json, sha256


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, sorted.

    Raises:
        ConfigurationError: the folder holds no config.json or no safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise ConfigurationError(
            f"{folder} is no model folder: it needs config.json and *.safetensors.",
            next_step="Weights in other formats (.bin, .pt) are pickled and never read: convert them to safetensors.",
            ids=[str(folder)],
        )
    return files


def model_digest(folder: Path) -> str:
    """SHA-256 over names and digests of config.json and all safetensors files."""
    files = [folder / "config.json", *weight_files(folder)]
    return sha256(canonical_json({path.name: file_sha256(path) for path in files}))


def count_parameters(folder: Path) -> int:
    """Number of weights in the safetensors files, from their headers (format: 8 bytes of length, then JSON)."""
    return sum(_parameters_of(path) for path in weight_files(folder))


def _parameters_of(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for dimension in tensor["shape"]:
                size *= dimension
            total += size
    return total
