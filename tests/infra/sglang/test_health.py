import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.ports import free_port
from infra.sglang.address import HiddenKey, ServerAddress
from infra.sglang.health import is_ready


class Server(BaseHTTPRequestHandler):
    """Answers like SGLang's server that calls itself `ours` and is healthy."""

    health, info, key = 200, {"data": [{"id": "ours"}]}, None

    def do_GET(self) -> None:
        known = self.key is None or self.headers["Authorization"] == f"Bearer {self.key}"
        self.send_response(self.health if self.path == "/health" else 200 if known else 401)
        self.end_headers()
        self.wfile.write(b"" if self.path == "/health" else json.dumps(self.info).encode())

    def log_message(self, format: str, *_: object) -> None: ...


@pytest.fixture
def serve() -> Iterator:
    servers: list[ThreadingHTTPServer] = []

    def start(**answers) -> ServerAddress:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Server,), answers))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return ServerAddress("127.0.0.1", server.server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_healthy_server_of_our_name_is_ready(serve):
    assert is_ready(serve(), "ours")


def test_a_server_that_still_loads_is_not_ready(serve):
    assert not is_ready(serve(health=503), "ours")


@pytest.mark.parametrize("info", [{"data": [{"id": "theirs"}]}, {"data": []}, {}])
def test_another_server_on_our_port_is_not_taken_for_ours(serve, info):
    assert not is_ready(serve(info=info), "ours")


def test_a_server_with_a_key_is_asked_with_it(serve):
    address = serve(key="secret")
    assert not is_ready(address, "ours")
    assert is_ready(ServerAddress(address.host, address.port, HiddenKey("secret")), "ours")


def test_nobody_on_the_port_is_not_ready():
    assert not is_ready(ServerAddress("127.0.0.1", free_port()), "ours")
