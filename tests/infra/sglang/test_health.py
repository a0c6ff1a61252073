import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.ports import free_port
from infra.sglang.health import is_ready


class Server(BaseHTTPRequestHandler):
    """Answers like SGLang's server that calls itself `ours` and is healthy."""

    health, info = 200, {"data": [{"id": "ours"}]}

    def do_GET(self) -> None:
        self.send_response(self.health if self.path == "/health" else 200)
        self.end_headers()
        self.wfile.write(b"" if self.path == "/health" else json.dumps(self.info).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def serve() -> Iterator:
    servers: list[ThreadingHTTPServer] = []

    def start(**answers) -> int:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Server,), answers))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

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


def test_nobody_on_the_port_is_not_ready():
    assert not is_ready(free_port(), "ours")
