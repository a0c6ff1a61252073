import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from infra.errors import InfraFault
from infra.prefect_api import prefect_api


@pytest.mark.prefect
def test_a_server_of_our_own_answers_and_ends_with_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with prefect_api(tmp_path / "server.log") as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/admin/version") as answer:
            assert json.load(answer).startswith("3.")
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/health")
    assert "PREFECT_API_URL" not in os.environ


@pytest.mark.prefect
def test_two_that_start_at_once_on_a_new_database_both_get_a_server(tmp_path: Path):
    env = {**os.environ, "PREFECT_HOME": str(tmp_path)}
    env.pop("PREFECT_API_URL", None)
    code = (
        "import sys; from pathlib import Path; from infra.prefect_api import prefect_api\n"
        "with prefect_api(Path(sys.argv[1])) as url: print(url)"
    )
    begun = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / f"{k}.log")], env=env, stdout=subprocess.PIPE)
        for k in range(2)
    ]
    said = [process.communicate()[0].decode() for process in begun]
    assert [process.returncode for process in begun] == [0, 0]
    assert all(text.startswith("http://127.0.0.1:") for text in said) and said[0] != said[1]


@pytest.mark.prefect
def test_a_configured_api_is_used(prefect_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    with prefect_api(tmp_path / "server.log") as url:
        assert url == prefect_url and not (tmp_path / "server.log").exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "nonsense"])
def test_a_configured_api_that_does_not_answer_is_infra(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", url)
    with pytest.raises(InfraFault, match="does not answer"), prefect_api(tmp_path / "server.log"):
        pass
