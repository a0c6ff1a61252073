"""A key is sent and is not shown."""

import argparse
import copy
from dataclasses import asdict

from infra.sglang.address import HiddenKey, ServerAddress
from infra.sglang.flags import KEY_VARIABLE, server_environment


def test_a_key_is_sent_and_not_shown():
    address = ServerAddress("10.0.0.1", 30000, HiddenKey("secret"))
    assert address.headers == {"Authorization": "Bearer secret"}
    assert ServerAddress("127.0.0.1", 1).headers == {}
    assert "secret" not in f"{address} {address!r} {asdict(address)}"


def test_it_stays_hidden_on_its_way_into_the_servers_settings():
    """Through the parser's `str`, and in the processes that the server starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key", type=str)
    given = parser.parse_args(["--api-key", HiddenKey("secret")]).api_key
    assert given == "secret" and repr(given) == "'***'"
    assert repr(copy.copy(given)) == "'***'"  # by the protocol that pickle uses too


def test_it_goes_by_the_environment():
    open_to_all, locked = (ServerAddress("127.0.0.1", 1, key) for key in (None, HiddenKey("secret")))
    assert server_environment({}, "cpu", "float32", locked)[KEY_VARIABLE] == "secret"
    assert KEY_VARIABLE not in server_environment({}, "cpu", "float32", open_to_all)
