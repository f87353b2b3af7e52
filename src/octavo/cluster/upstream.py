"""The relay's HTTP client: one request to a replica's private port, and its answer's bytes as they come.

Nothing of a client's framing is passed on: a request has the headers that a replica reads, and its body with
its length; an answer loses what is of one connection alone. Backpressure is the library's: it stops to read
from a replica when 128 KiB of an answer wait to be sent on.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
from starlette.requests import Request
from yarl import URL

from octavo.cluster.fleet import Replica
from octavo.errors import shown
from octavo.server.dialects.error_shapes import REQUEST_ID_KEY
from octavo.server.generation import SESSION_HEADER
from octavo.server.replica import KEY_HEADER

_CONNECT_S = 5.0
_KEEP_ALIVE_S = 15.0  # half of a replica's, so that no request meets a connection that is being closed
_HEADER_BYTES_MAX = 1 << 17  # of one header: an answer names the requests of a thousand prompts
# A replica's machine that vanished is noticed after 10 + 3 * 5 s.
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
# What replicas read of a request. All else stays here: Host, Origin, cookies, and x-octavo- headers of ours.
PASSED_HEADERS: Final = frozenset(
    {"authorization", "x-api-key", "content-type", "content-encoding", "accept", "user-agent"}
    | {"anthropic-version", "anthropic-beta", "traceparent", "tracestate", SESSION_HEADER.lower()}
)
# What of an answer is of one connection, or is written again by this server.
_DROPPED_HEADERS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade", b"date", b"server", b"x-octavo-replica"}
)


class _Lost(Exception):
    def __init__(self, replica: Replica, why: str) -> None:
        super().__init__(f"{replica.name}: {why}")
        self.replica = replica


class NotSent(_Lost):
    """The replica could not be reached: it has nothing of the request."""


class ReplicaLost(_Lost):
    """The connection ended before the answer began."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as replicas get it."""

    method: str
    path: str  # with its query
    headers: dict[str, str]
    body: Sequence[bytes] = ()

    @classmethod
    def of(cls, request: Request, body: Sequence[bytes] = ()) -> Outgoing:
        """A client's request, whose body was read."""
        headers = dict[str, str]()
        for name, value in request.headers.items():
            if name in PASSED_HEADERS:
                headers.setdefault(name, value)  # of several the first, which the relay has read
        headers["x-request-id"] = str(request.scope[REQUEST_ID_KEY])
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        query = request.scope["query_string"].decode("latin-1")
        path = raw_path.decode("latin-1").partition("?")[0] + (f"?{query}" if query else "")
        return cls(request.method, path, headers, body)

    def to(self, path: str) -> Outgoing:
        """The same to another path, with its query."""
        return replace(self, path=path)


class Upstream:
    """Connections to all replicas, on one event loop. `key`: what opens their ports."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def send(
        self, replica: Replica, out: Outgoing, silent_s: float | None = None
    ) -> aiohttp.ClientResponse:
        """The answer's head; its body is to be read, or closed. Cancelling closes the connection, by which
        the replica cancels the request. `silent_s`: without a byte for so long it is lost. Raises NotSent or
        ReplicaLost; ValueError for a path without its first slash."""
        if self._is_closed:
            raise NotSent(replica, "all connections were closed")
        session = self._session = self._session or _new_session()
        headers = out.headers | {KEY_HEADER: self._key}
        # Of a file-like object a large body is written in pieces, between which others go on.
        data = io.BytesIO(b"".join(out.body)) if out.body else None
        if data is not None:
            headers.setdefault("content-type", "application/json")
        if not out.path.startswith("/"):  # behind the address it would be part of it
            raise ValueError(f"the path is {shown(out.path)}; allowed: /path")
        url = URL(replica.base_url + out.path, encoded=True)
        assert url.origin() == URL(replica.base_url).origin()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silent_s)
        try:
            return await session.request(
                out.method, url, data=data, headers=headers, allow_redirects=False, timeout=timeout
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSent(replica, str(error)) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ReplicaLost(replica, str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close all connections, also those on which answers are awaited. Again does nothing."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Those of a replica's answer that its client gets."""
    return [(name.lower(), value) for name, value in headers if name.lower() not in _DROPPED_HEADERS]


def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=_KEEP_ALIVE_S,
            socket_factory=_new_socket,
        ),
        max_line_size=_HEADER_BYTES_MAX,
        max_field_size=_HEADER_BYTES_MAX,
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def _new_socket(address: tuple[object, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)  # type: ignore[arg-type]
    made.setblocking(False)
    for option in _SOCKET_OPTIONS:
        made.setsockopt(*option)
    return made
