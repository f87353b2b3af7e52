"""The relay's HTTP client: sends a request to a replica's private port, and streams its answer.

A client's framing is not passed on: a replica gets the headers that it reads, and the body with its length;
hop-by-hop headers of an answer are dropped. aiohttp does backpressure: it stops reading from a replica when
128 KiB of an answer are buffered.
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
_KEEP_ALIVE_S = 15.0  # half of a replica's, so that no request is sent on a closing connection
_HEADER_BYTES_MAX = 1 << 17  # of one header: an answer may have the ids of a thousand requests
# A vanished machine is detected after 10 + 3 * 5 s.
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
# The headers that replicas read. Others stay here: Host, Origin, cookies, and a client's x-octavo- headers.
PASSED_HEADERS: Final = frozenset(
    {"authorization", "x-api-key", "content-type", "content-encoding", "accept", "user-agent"}
    | {"anthropic-version", "anthropic-beta", "traceparent", "tracestate", SESSION_HEADER.lower()}
)
# Hop-by-hop headers of an answer, and those that this server writes itself.
_DROPPED_HEADERS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade", b"date", b"server", b"x-octavo-replica"}
)


class _Lost(Exception):
    def __init__(self, replica: Replica, why: str) -> None:
        super().__init__(f"{replica.name}: {why}")
        self.replica = replica


class NotSent(_Lost):
    """The replica could not be reached, so it has nothing of the request."""


class ReplicaLost(_Lost):
    """The connection ended before the answer began."""


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request to a replica."""

    method: str
    path: str  # with its query
    headers: dict[str, str]
    body: Sequence[bytes] = ()

    @classmethod
    def of(cls, request: Request, body: Sequence[bytes] = ()) -> OutgoingRequest:
        """The request to a replica for a client's request, whose body was read."""
        headers = dict[str, str]()
        for name, value in request.headers.items():
            if name in PASSED_HEADERS:
                headers.setdefault(name, value)  # the first of several, which the relay read
        headers["x-request-id"] = str(request.scope[REQUEST_ID_KEY])
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        query = request.scope["query_string"].decode("latin-1")
        path = raw_path.decode("latin-1").partition("?")[0] + (f"?{query}" if query else "")
        return cls(request.method, path, headers, body)

    def to(self, path: str) -> OutgoingRequest:
        """This request to another path, with its query."""
        return replace(self, path=path)


class Upstream:
    """Connections to all replicas, on one event loop. `key`: of their private ports."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def send(
        self, replica: Replica, out: OutgoingRequest, silent_s: float | None = None
    ) -> aiohttp.ClientResponse:
        """The answer's head; the caller reads or closes its body. Cancelling closes the connection, and the
        replica then cancels the request. After `silent_s` without a byte the replica counts as lost. Raises
        NotSent or ReplicaLost; ValueError for a path without a leading slash."""
        if self._is_closed:
            raise NotSent(replica, "all connections were closed")
        session = self._session = self._session or _new_session()
        headers = out.headers | {KEY_HEADER: self._key}
        # aiohttp writes a file-like object in pieces, between which the event loop runs other requests.
        data = io.BytesIO(b"".join(out.body)) if out.body else None
        if data is not None:
            headers.setdefault("content-type", "application/json")
        if not out.path.startswith("/"):  # it would become part of the host
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
        """Close all connections, also those of running requests. Idempotent."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a replica's answer that its client gets."""
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
