"""A client that leaves: it asks over a socket of its own, and closes it whatever has come."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.waiting import LIMIT_S


@contextmanager
def asking(url: str, body: Mapping[str, object]) -> Iterator[socket.socket]:
    """A completion is asked for while the block lasts; then the connection is closed."""
    host, port = url.split("/")[2].split(":")
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(head.encode() + content)
        yield connection
