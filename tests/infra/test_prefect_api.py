import json
import os
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
def test_a_configured_api_is_used(prefect_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    with prefect_api(tmp_path / "server.log") as url:
        assert url == prefect_url and not (tmp_path / "server.log").exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "nonsense"])
def test_a_configured_api_that_does_not_answer_is_infra(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", url)
    with pytest.raises(InfraFault, match="does not answer"), prefect_api(tmp_path / "server.log"):
        pass
