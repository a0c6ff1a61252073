import pytest

from infra.errors import ConfigurationError
from infra.settings import settings


@pytest.mark.parametrize("text", ["hooks,mine", "hooks, mine"])
def test_packages_are_written_with_commas(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_HOOK_PACKAGES", text)
    assert settings().hook_packages == ("hooks", "mine")


def test_a_wrong_value_is_configuration_and_names_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "maybe")
    with pytest.raises(ConfigurationError, match="HF_HUB_OFFLINE"):
        settings()


@pytest.mark.parametrize("name", ["FANLINE_TIGHT_MEMORY", "SLIME_TEST_TIGHT_DEVICE_MEMORY"])
def test_memory_is_tight_where_the_environment_says_so(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "1")
    assert settings().tight_memory
