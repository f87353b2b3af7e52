"""HTTP/1.1 on a socket, byte by byte: the order and case of headers, and the chunks of a body, are kept."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

WAIT_S = 60.0
Header = tuple[str, str]


@dataclass(slots=True)
class RawResponse:
    """A response as it was sent. `chunks` are those of a chunked body, else the body is the only one."""

    status_line: str = ""
    headers: list[Header] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    is_chunked: bool = False
    was_left: bool = False  # the client closed the connection before the end
    length: int | None = None  # of a body that is not chunked, as it was read

    def header(self, name: str) -> str:
        """Its value, "" for none."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.chunks)


class Connection:
    """One request and its response. Close it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._bytes = b""
        self._is_head = False
        self.response = RawResponse()

    def send(self, method: str, path: str, headers: Sequence[Header], body: bytes) -> None:
        """The request, in one write."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
        self._is_head = method == "HEAD"
        self._socket.sendall("\r\n".join(lines).encode() + body)

    def read_head(self) -> None:
        """Status line and headers."""
        while b"\r\n\r\n" not in self._bytes:
            self._more()
        head, _, self._bytes = self._bytes.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.response.status_line = first
        for line in lines:
            name, _, value = line.partition(":")
            self.response.headers.append((name, value.removeprefix(" ")))
        self.response.is_chunked = self.response.header("transfer-encoding") == "chunked"

    def read_chunks(self, count: int | None = None) -> bool:
        """So many chunks more, or all; False where the body has ended before."""
        while count is None or count > 0:
            size = int(self._line(), 16)
            data = self._exactly(size)
            assert self._exactly(2) == b"\r\n"
            if size == 0:
                return False
            self.response.chunks.append(data)
            count = None if count is None else count - 1
        return True

    def read_body(self) -> None:
        """All that is left."""
        status = self.response.status_line.split(" ")[1]
        if self._is_head or status in ("204", "304"):
            return
        if self.response.is_chunked:
            self.read_chunks()
        elif length := self.response.header("content-length"):
            self.response.chunks.append(self._exactly(int(length)))
        else:
            while data := self._socket.recv(1 << 16):
                self._bytes += data
            self.response.chunks.append(self._bytes)
            self._bytes = b""
        if not self.response.is_chunked:
            self.response.length = len(self.response.body)

    def close(self) -> None:
        """The client leaves."""
        self._socket.close()

    def finish(self) -> None:
        """The response is read: the server sends no byte behind it."""
        self._socket.shutdown(socket.SHUT_WR)
        left = self._bytes + b"".join(iter(lambda: self._socket.recv(1 << 16), b""))
        assert left == b"", f"bytes behind a response: {left[:200]!r}"
        self._socket.close()

    def _line(self) -> bytes:
        while b"\r\n" not in self._bytes:
            self._more()
        line, _, self._bytes = self._bytes.partition(b"\r\n")
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._bytes) < size:
            self._more()
        data, self._bytes = self._bytes[:size], self._bytes[size:]
        return data

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        assert data, f"the connection ended within a response: {self._bytes[:200]!r}"
        self._bytes += data
