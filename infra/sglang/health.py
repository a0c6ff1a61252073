"""Whether a server answers on a port, and whether it is the one that was started."""

import http.client
import json

from infra.sglang.address import ServerAddress

PROBE_SECONDS = 5.0


def is_ready(address: ServerAddress, served_name: str) -> bool:
    """True once the server at this address is healthy and calls itself `served_name`; any name will do for "".

    The name matters: between choosing a free port and listening on it another server may have taken it.
    """
    connection = http.client.HTTPConnection(address.host, address.port, timeout=PROBE_SECONDS)
    try:
        if _get(connection, "/health", {})[0] != 200:
            return False
        if not served_name:
            return True
        status, body = _get(connection, "/v1/models", address.headers)
        return status == 200 and json.loads(body)["data"][0]["id"] == served_name
    except (OSError, http.client.HTTPException, json.JSONDecodeError, LookupError):
        return False  # nobody there yet, or somebody else
    finally:
        connection.close()


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.read()
