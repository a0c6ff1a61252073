"""The doctor against this machine, a loopback server and stores that fail."""

import http.server
import importlib.metadata
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from infra import doctor
from infra.bootstrap import ROOT
from infra.settings import Settings, settings


def having(**values: object) -> Settings:
    return settings().model_copy(update=values)


@pytest.fixture
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No server configured, an empty folder for the store."""
    for name in ("PREFECT_API_URL", "RAY_ADDRESS", "FANLINE_RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FANLINE_STORE", str(tmp_path / "store"))
    return tmp_path


def test_everything_is_looked_at_and_what_is_wrong_has_a_mend(quiet_machine: Path):
    findings = doctor.diagnose()
    names = [finding.name for finding in findings]
    assert {"python", "packages", "processor", "memory", "disk", "/dev/shm", "loopback", "store"} <= set(names)
    assert {"prefect", "ray"} <= set(names) and any(name.startswith("gpu") for name in names)
    assert all(bool(finding.mend) != finding.ok and finding.found for finding in findings)
    by_name = {finding.name: finding for finding in findings}
    assert all(by_name[name].ok for name in ("python", "store", "loopback", "prefect", "ray"))
    assert not any(path.is_file() for path in (quiet_machine / "store").rglob("*")), "the probe leaves nothing"


def test_it_is_quick_because_it_imports_no_engine(quiet_machine: Path):
    code = "import sys, infra.doctor as d; d.diagnose(); print({'torch', 'ray', 'prefect'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def lock(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cpu.txt"
    path.write_text(text)
    return path


def all_of(*names: str) -> str:
    return "".join(f"{name}=={importlib.metadata.version(name)}\n" for name in names)


def test_packages_as_the_lock_says(tmp_path: Path):
    finding = doctor.packages(lock(tmp_path, all_of("torch", "sglang", "megatron-core", "ray", "prefect", "rich")))
    assert finding.ok and finding.found.startswith("all 6 of cpu.txt")


def test_a_pin_without_a_local_part_takes_a_local_build(tmp_path: Path):
    torch = importlib.metadata.version("torch").split("+")[0]
    assert doctor.packages(lock(tmp_path, f"torch=={torch}\n{all_of('sglang', 'megatron-core', 'ray', 'prefect')}")).ok


def test_missing_and_other_versions_are_named_with_the_command(tmp_path: Path):
    finding = doctor.packages(lock(tmp_path, "not-there==1\nrich==0.1\n"))
    assert not finding.ok and finding.mend == "python3 infra/bootstrap.py install"
    assert "not-there is missing" in finding.found and "instead of 0.1" in finding.found


def test_pins_with_a_marker_for_another_python_are_not_missed(tmp_path: Path):
    pins = doctor.lock_pins(lock(tmp_path, '# a==1\nb==2 ; python_full_version < "3.0"\nc==3+cpu\n'))
    assert pins == {"c": "3+cpu"}


@pytest.mark.parametrize("uri", ["/proc/no-store", "s3-of-nobody://bucket"])
def test_a_store_that_can_not_be_used(uri: str):
    finding = doctor.store(having(store=uri))
    assert not finding.ok and finding.found and "FANLINE_STORE" in finding.mend


@pytest.fixture
def version_server() -> Iterator[str]:
    """Answers what a Prefect server answers to GET /api/version."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/version" else 404)
            self.end_headers()
            self.wfile.write(b'"3.9.1"')

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_prefect_api_that_answers(version_server: str):
    finding = doctor.prefect_api(having(prefect_api_url=f"{version_server}/api"))
    assert finding.ok and "3.9.1" in finding.found


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_prefect_api_that_does_not_answer():
    finding = doctor.prefect_api(having(prefect_api_url=f"http://127.0.0.1:{closed_port()}/api"))
    assert not finding.ok and "PREFECT_API_URL" in finding.mend


def test_a_ray_cluster_that_is_there_and_one_that_is_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert doctor.ray_cluster(having(ray_address=f"127.0.0.1:{server.getsockname()[1]}")).ok
    finding = doctor.ray_cluster(having(ray_address=f"127.0.0.1:{closed_port()}"))
    assert not finding.ok and "RAY_ADDRESS" in finding.mend


def test_the_table_shows_the_mend_below_what_is_wrong():
    findings = [
        doctor.Finding(name="memory", ok=True, found="7.0 GiB"),
        doctor.Finding(name="store", ok=False, found="read-only", mend="make it writable"),
    ]
    text = StringIO()
    Console(file=text, width=80).print(doctor.table(findings))
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert lines == [
        ["ok", "memory", "7.0", "GiB"],
        ["no", "store", "read-only"],
        ["mend:", "make", "it", "writable"],
    ]
