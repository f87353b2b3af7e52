"""Connections: a limit on their number, and on the time in which a client sends its headers.

    connection_made ── WAITING ──(headers complete)─ BUSY ──(answered)── KEPT ──(first byte)── WAITING ...
                          │                                                │
                 headers_timeout_s: closed                    uvicorn's keep-alive: closed

A connection takes a file descriptor. At the limit, a new connection evicts the oldest waiting one, or else
the oldest kept one, of the address that has the most: a client that opens a thousand connections and sends
nothing loses them to clients that send requests. A busy connection is never evicted. If all are busy, the new
one gets a 503.

Each connection has uvicorn's HTTP/1.1 protocol behind it, which gets the received bytes and writes to the
transport itself. A request begins when the protocol creates another task of the server. uvicorn copies the
app's state into each scope, and that state holds the connection: `track_requests` reports to it the end of an
answer, and the beginning of a pipelined request.

With TLS a connection counts from its first moment: `headers_timeout_s` includes the handshake. A new one
beyond the limit is closed without an answer.

Addresses come from the socket. Slow readers are left to the kernel (`run.bind` sets TCP_USER_TIMEOUT).
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import ssl
from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum, auto
from functools import partial
from http import HTTPStatus
from itertools import chain

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from octavo.errors import ConfigError
from octavo.server.errors import HttpRefusal, error_body
from octavo.server.sse import encode_json

CONNECTIONS_MAX = 4096
ACCEPT_AT_ONCE = 128  # connections that the event loop accepts before it reads from any of them
ACCEPT_AT_ONCE_SHARED = 2  # the same where several processes accept, so that each gets its share
_RESERVE = 64  # descriptors for files, databases and libraries
_CONNECTIONS_MIN = 16
_TLS_SHUTDOWN_TIMEOUT_S = 5.0
_STATE_KEY = "octavo.connection"  # in a scope's state
_FULL_BODY = encode_json(
    error_body(
        HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "all connections of this server are busy", code="full")
    )
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Retry-After: 1\r\nContent-Length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)

_log = logging.getLogger("octavo.server")


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors as far as allowed, up to twice what connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS_MAX if hard == resource.RLIM_INFINITY else min(hard, 2 * CONNECTIONS_MAX)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_allowed(requested: int | None = None) -> int:
    """How many connections this process's free descriptors allow, less a reserve.

    Raises ConfigError if that is too few to serve, or fewer than `requested`.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    room = soft - in_use - _RESERVE - ACCEPT_AT_ONCE
    least = _CONNECTIONS_MIN if requested is None else requested
    if room < least:
        raise ConfigError(
            f"{soft:,} file descriptors leave {max(0, room):,} for connections, with {in_use:,} in use and "
            f"{_RESERVE + ACCEPT_AT_ONCE} in reserve; allowed: at least {least:,} (raise it: ulimit -n)"
        )
    return min(room, CONNECTIONS_MAX) if requested is None else requested


class State(IntEnum):
    """The state of a connection."""

    WAITING = auto()  # for complete headers
    KEPT = auto()  # answered, and open for another request
    BUSY = auto()  # its request is being answered


class _Peer:
    """The connections of one address, the oldest first."""

    def __init__(self) -> None:
        self.by_state: dict[State, dict[BoundedConnection, None]] = {state: {} for state in State}

    @property
    def num_idle(self) -> int:
        return len(self.by_state[State.WAITING]) + len(self.by_state[State.KEPT])

    @property
    def num_all(self) -> int:
        return self.num_idle + len(self.by_state[State.BUSY])


class Connections:
    """All connections of a server, by address. Used on its event loop only."""

    def __init__(self, total_max: int, headers_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self.total_max = total_max
        # A reverse proxy is one address, so one address may have half of them.
        self.address_max = max(1, total_max // 2)
        self.headers_timeout_s = headers_timeout_s
        self.tls = tls  # for the next handshake; None: plain HTTP
        self.num_all = 0
        self._peers: defaultdict[str, _Peer] = defaultdict(_Peer)

    def admit(self, connection: BoundedConnection) -> bool:
        """Add a new connection, evicting an idle one at the limit; False if all are busy."""
        peer, has_room = self._peers.get(connection.address, _Peer()), True
        if peer.num_all >= self.address_max:
            has_room = self._evict(peer, f"{self.address_max:,} of {connection.address}")
        elif self.num_all >= self.total_max:
            largest = max(self._peers.values(), key=lambda one: one.num_idle)
            has_room = self._evict(largest, f"{self.total_max:,} in all")
        if has_room:
            self.set_state(connection, State.WAITING)
        else:
            _log.warning("connection refused: all are busy (%s has %d)", connection.address, peer.num_all)
        return has_room

    def set_state(self, connection: BoundedConnection, state: State | None) -> None:
        """Change a connection's state; None: it is closed. One that stays WAITING too long is closed."""
        if connection.state is state:
            return
        peer = self._peers[connection.address]
        if connection.state is not None:
            del peer.by_state[connection.state][connection]
        if state is not None:
            peer.by_state[state][connection] = None
        self.num_all += (connection.state is None) - (state is None)
        connection.state = state
        if state is None and peer.num_all == 0:
            del self._peers[connection.address]
        if connection.timer is not None:
            connection.timer.cancel()
        if state is State.WAITING:
            loop = asyncio.get_running_loop()
            connection.timer = loop.call_later(self.headers_timeout_s, self._on_timeout, connection)

    def abort_all(self, *, only_handshakes: bool = False) -> None:
        """Close all connections, or only those whose TLS handshake is not done."""
        for peer in list(self._peers.values()):
            for connection in list(chain(*peer.by_state.values())):
                if connection.is_in_handshake or not only_handshakes:
                    connection.abort()

    def _evict(self, peer: _Peer, what: str) -> bool:
        """Close an address's oldest waiting connection, or else its oldest kept one; False if it has none."""
        oldest = next(chain(peer.by_state[State.WAITING], peer.by_state[State.KEPT]), None)
        if oldest is None:
            return False
        _log.warning("connections: %s, the most allowed: the oldest idle one is closed", what)
        oldest.abort()
        return True

    def _on_timeout(self, connection: BoundedConnection) -> None:
        text = "connection of %s closed: no complete request headers within %.0f s"
        _log.warning(text, connection.address, self.headers_timeout_s)
        connection.abort()


class BoundedConnection(asyncio.Protocol):
    """One connection: its address, its state in `Connections` and its TLS handshake. Everything else is left
    to the protocol that `make_http` creates from uvicorn's arguments."""

    def __init__(
        self,
        connections: Connections,
        make_http: Callable[..., asyncio.Protocol],
        *,
        server_state: ServerState,
        app_state: dict[str, object],
        **of_uvicorn: object,  # its other arguments, passed on
    ) -> None:
        self._all = connections
        self._make_http = partial(make_http, server_state=server_state, **of_uvicorn)
        self._tasks = server_state.tasks  # one for each request that the server is answering
        self._app_state = app_state
        self._http = asyncio.Protocol()  # does nothing; replaced when HTTP begins
        self._transport: asyncio.Transport
        self._handshake: asyncio.Task[None] | None = None
        self._early_data = b""  # received before the handshake's task was resumed
        self._num_requests = 0  # begun; a pipelined one counts twice
        self._has_read = False  # anything since the last answer was complete
        self.address = ""
        # Set by `Connections`:
        self.state: State | None = None
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept or refuse a new connection."""
        self._transport, peername = transport, transport.get_extra_info("peername")
        self.address = str(peername[0]) if isinstance(peername, tuple) else "local"
        context = self._all.tls
        if self._all.admit(self):
            if context is None:
                self._begin_http(transport)
            else:
                self._handshake = asyncio.create_task(self._tls_handshake(context))
        elif context is None:
            transport.write(_FULL)
            transport.close()
        else:
            transport.abort()

    def _begin_http(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._http = self._make_http(app_state=self._app_state | {_STATE_KEY: self})
        self._http.connection_made(transport)

    async def _tls_handshake(self, context: ssl.SSLContext) -> None:
        """Encrypt the connection, or close it."""
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._all.headers_timeout_s,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_TIMEOUT_S,
            )
        except OSError as error:  # a TLS or network error
            _log.debug("connection of %s closed: TLS: %s", self.address, error)
            encrypted = None
        self._handshake = None
        if encrypted is None:
            self.abort()
            return
        self._begin_http(encrypted)
        if self._early_data:
            data, self._early_data = self._early_data, b""
            self.data_received(data)

    @property
    def is_in_handshake(self) -> bool:
        """Whether its TLS handshake is not done."""
        return self._handshake is not None

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, which may be the next one."""
        if self.is_in_handshake:
            self._early_data += data
            return
        if self.state is State.KEPT:
            self._all.set_state(self, State.WAITING)
        self._has_read, num_tasks = True, len(self._tasks)
        self._http.data_received(data)
        if len(self._tasks) > num_tasks:
            self.begin()

    def eof_received(self) -> bool | None:
        """The client has closed its side."""
        return self._http.eof_received()

    def pause_writing(self) -> None:
        """The write buffer is full."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """The write buffer is nearly empty."""
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, for any reason."""
        self._close()
        self._http.connection_lost(None)  # with an exception uvicorn would not cancel its keep-alive timer
        self._http = asyncio.Protocol()  # the old one refers to this connection

    def begin(self) -> None:
        """A request begins: from now on the connection is not evicted."""
        if self.state is not None:
            self._num_requests += 1
            self._all.set_state(self, State.BUSY)

    def end(self) -> None:
        """The answer is complete. A pipelined request has a task, which begins first."""
        self._has_read = False
        asyncio.get_running_loop().call_soon(self._set_idle, self._num_requests)

    def _set_idle(self, num_requests: int) -> None:
        if self.state is not None and num_requests == self._num_requests:
            self._all.set_state(self, State.WAITING if self._has_read else State.KEPT)

    def abort(self) -> None:
        """Close at once."""
        self._close()
        self._transport.abort()

    def _close(self) -> None:
        self._all.set_state(self, None)
        handshake, self._handshake = self._handshake, None  # the task refers to this connection
        if handshake is not None:
            handshake.cancel()


def track_requests(app: ASGIApp) -> ASGIApp:
    """`app`, which reports to a request's connection when the request begins and when its answer is complete.
    (If it is never complete, uvicorn closes the connection.)"""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get(_STATE_KEY)
        if connection is None:  # of the lifespan protocol
            await app(scope, receive, send)
            return

        async def send_and_report(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.end()

        connection.begin()
        await app(scope, receive, send_and_report)

    return call
