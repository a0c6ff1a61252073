"""Labels and addresses of Ray nodes, without a cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import ConfigurationError
from infra.nodes import described, interface_of, matching, parse_labels
from infra.settings import settings

NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,10}", fullmatch=True)
NODES = [
    {"Alive": True, "Labels": {"role": "trainer", "pool": "a"}, "Resources": {"CPU": 4.0, "GPU": 2.0}},
    {"Alive": True, "Labels": {"role": "engine", "pool": "a"}, "Resources": {"CPU": 4.0, "GPU": 1.0}},
    {"Alive": False, "Labels": {"role": "trainer", "pool": "a"}, "Resources": {}},
    {"Alive": True, "Labels": {"role": "trainer", "pool": "b"}, "Resources": {"CPU": 8.0}},
]


@given(st.dictionaries(NAME, NAME))
def test_labels_are_read_as_ray_writes_them(labels: dict[str, str]):
    assert parse_labels(", ".join(f"{key}={value}" for key, value in labels.items())) == labels


@pytest.mark.parametrize("text", ["role", "=trainer", "role=", "role=a=b", "role=a;pool=b"])
def test_what_is_no_label_is_refused_by_the_setting_that_has_it(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FANLINE_ENGINE_LABELS", text)
    with pytest.raises(ConfigurationError, match=r"engine_labels.* is no label; write key=value"):
        settings()


def test_a_pool_sees_its_own_living_nodes_only():
    assert matching(NODES, {"role": "trainer", "pool": "a"}) == NODES[:1]
    assert matching(NODES, {"pool": "b"}) == NODES[3:]
    assert len(matching(NODES, {})) == 3
    assert described(NODES, {"pool": "a"}) == "2 nodes with the labels pool=a have 8 CPUs and 3 GPUs"
    assert described(NODES, {}) == "3 nodes have 16 CPUs and 3 GPUs"


def test_the_interface_is_the_one_that_reaches_an_address():
    assert interface_of("127.0.0.1") == interface_of("127.0.0.2") == "lo"
    with pytest.raises(OSError, match=r"no network interface of this host has the address 203\.0\.113\.9"):
        interface_of("203.0.113.9")
