"""The sockets of a router, as vLLM's clients have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq


@contextmanager
def client(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """A socket of a router; a SUB is subscribed."""
    context = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    if kind == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close(linger=0)
        context.term()


def replay_of(socket: zmq.Socket[bytes], start: int, topic: str) -> list[tuple[int, bytes]]:
    """What vLLM's client does: the numbers and batches from `start` on."""
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    found = []
    while True:
        empty, told, number, payload = socket.recv_multipart()
        assert empty == b""
        if not payload:
            assert (told, number) == (b"", b"\xff" * 8)
            return found
        assert told == topic.encode()
        found.append((int.from_bytes(number, "big"), payload))
