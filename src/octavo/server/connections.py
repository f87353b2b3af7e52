"""Connections: how long one may take to send its headers, and how many there may be.

    connection_made ── WAITING ──(headers are whole)── BUSY ──(answered)── KEPT ──(first byte)── WAITING ...
                          │                                                  │
                 headers_timeout_s: closed                      uvicorn's keep-alive: closed

A connection costs a file descriptor. When there is no room for a new one, one that waits is closed for it,
then one that is kept, the oldest of the address that has most: a client that opens a thousand connections
and sends nothing loses them to clients that send requests. One whose request is being answered is never
closed; if all are, the new one gets a 503.

uvicorn's HTTP/1.1 is behind each: it gets what is read, and writes to the transport itself. A request begins
when that makes another of the server's tasks. uvicorn passes on the state of a scope, which holds the
connection: so `noting_requests` notes there when an answer is whole, or a request begins that came early.

With TLS a connection has its place, and its time, from its first moment too: the handshake is part of what
must be done within `headers_timeout_s`. A new one without room is then cut off without an answer.

Addresses come from the socket. A slow reader is the kernel's affair (`run.bind` sets TCP_USER_TIMEOUT).
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
ACCEPT_AT_ONCE = 128  # connections that the event loop takes before it looks at any of them
ACCEPT_AT_ONCE_SHARED = 2  # the same where other processes accept too, so that each gets its part
_RESERVE = 64  # descriptors for files, databases and what a library opens
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
    """Take as many descriptors as the system lets this process have, up to twice what connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS_MAX if hard == resource.RLIM_INFINITY else min(hard, 2 * CONNECTIONS_MAX)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_allowed(asked: int | None = None) -> int:
    """How many connections the descriptors of this process allow, beside what is open and a reserve.

    Raises ConfigError where that is too few to serve, or fewer than were asked for.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    room = soft - in_use - _RESERVE - ACCEPT_AT_ONCE
    least = _CONNECTIONS_MIN if asked is None else asked
    if room < least:
        raise ConfigError(
            f"{soft:,} file descriptors leave {max(0, room):,} for connections, beside {in_use:,} in use and "
            f"{_RESERVE + ACCEPT_AT_ONCE} in reserve; allowed: at least {least:,} (raise it: ulimit -n)"
        )
    return min(room, CONNECTIONS_MAX) if asked is None else asked


class State(IntEnum):
    """What a connection does."""

    WAITING = auto()  # for whole headers
    KEPT = auto()  # answered, and open for another request
    BUSY = auto()  # its request is being answered


class _Peer:
    """The connections of one address. Dictionaries are in order of time."""

    def __init__(self) -> None:
        self.by_state: dict[State, dict[BoundedConnection, None]] = {state: {} for state in State}

    @property
    def num_idle(self) -> int:
        return len(self.by_state[State.WAITING]) + len(self.by_state[State.KEPT])

    @property
    def num_all(self) -> int:
        return self.num_idle + len(self.by_state[State.BUSY])


class Connections:
    """All connections of a server, by address. On its event loop alone."""

    def __init__(self, total_max: int, headers_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self.total_max = total_max
        # A proxy in front is one address, so that much is left to it.
        self.address_max = max(1, total_max // 2)
        self.headers_timeout_s = headers_timeout_s
        self.tls = tls  # of the next handshake; None: plain HTTP
        self.num_all = 0
        self._peers: defaultdict[str, _Peer] = defaultdict(_Peer)

    def admit(self, connection: BoundedConnection) -> bool:
        """Let a new connection wait, perhaps in the place of an idle one; False when all are busy."""
        peer, has_room = self._peers.get(connection.address, _Peer()), True
        if peer.num_all >= self.address_max:
            has_room = self._evict(peer, f"{self.address_max:,} of {connection.address}")
        elif self.num_all >= self.total_max:
            largest = max(self._peers.values(), key=lambda one: one.num_idle)
            has_room = self._evict(largest, f"{self.total_max:,} in all")
        if has_room:
            self.move(connection, State.WAITING)
        else:
            _log.warning("connection refused: all are busy (%s has %d)", connection.address, peer.num_all)
        return has_room

    def move(self, connection: BoundedConnection, state: State | None) -> None:
        """Note what a connection does from now on; None: it has left. One that waits too long is closed."""
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
        """Close every connection, whatever it does, or those whose TLS handshake is not done."""
        for peer in list(self._peers.values()):
            for connection in list(chain(*peer.by_state.values())):
                if connection.is_in_handshake or not only_handshakes:
                    connection.abort()

    def _evict(self, peer: _Peer, what: str) -> bool:
        """Close the oldest idle connection of an address, one that waits first; False where it has none."""
        oldest = next(chain(peer.by_state[State.WAITING], peer.by_state[State.KEPT]), None)
        if oldest is None:
            return False
        _log.warning("connections: %s, which is the most allowed: the oldest idle one is closed", what)
        oldest.abort()
        return True

    def _on_timeout(self, connection: BoundedConnection) -> None:
        text = "connection of %s closed: no whole request headers within %.0f s"
        _log.warning(text, connection.address, self.headers_timeout_s)
        connection.abort()


class BoundedConnection(asyncio.Protocol):
    """One connection: its address, its place among `Connections` and its TLS handshake; all else is the
    protocol's that `make_http` makes of uvicorn's arguments."""

    def __init__(
        self,
        connections: Connections,
        make_http: Callable[..., asyncio.Protocol],
        *,
        server_state: ServerState,
        app_state: dict[str, object],
        **of_uvicorn: object,  # its other arguments, of which nothing is known here
    ) -> None:
        self._all = connections
        self._make_http = partial(make_http, server_state=server_state, **of_uvicorn)
        self._tasks = server_state.tasks  # one for each request of the server that is being answered
        self._app_state = app_state
        self._http = asyncio.Protocol()  # which does nothing, until there is a transport for HTTP
        self._transport: asyncio.Transport
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""  # what came before the task could note that its handshake was done
        self._num_begun = 0  # requests; one that came early counts twice
        self._has_read = False  # something, since an answer was whole
        self.address = ""
        # Of `Connections`:
        self.state: State | None = None
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: it waits, or is refused."""
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
        """From here on the connection is encrypted, or closed."""
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._all.headers_timeout_s,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_TIMEOUT_S,
            )
        except OSError as error:  # of TLS, or of the network
            _log.debug("connection of %s closed: TLS: %s", self.address, error)
            encrypted = None
        self._handshake = None
        if encrypted is None:
            self.abort()
            return
        self._begin_http(encrypted)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    @property
    def is_in_handshake(self) -> bool:
        """Whether its TLS handshake is not done."""
        return self._handshake is not None

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; of the next one, where the one before was answered."""
        if self.is_in_handshake:
            self._early += data
            return
        if self.state is State.KEPT:
            self._all.move(self, State.WAITING)
        self._has_read, num_tasks = True, len(self._tasks)
        self._http.data_received(data)
        if len(self._tasks) > num_tasks:
            self.begin()

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._http.eof_received()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """It has read most of what was written."""
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, for any reason."""
        self._leave()
        self._http.connection_lost(None)  # with an exception uvicorn would let its keep-alive timer run
        self._http = asyncio.Protocol()  # the other leads back here

    def begin(self) -> None:
        """A request begins to be answered: the connection is not closed for another from now on."""
        if self.state is not None:
            self._num_begun += 1
            self._all.move(self, State.BUSY)

    def end(self) -> None:
        """Its answer is whole. A request that came early has a task, which begins first."""
        self._has_read = False
        asyncio.get_running_loop().call_soon(self._rest, self._num_begun)

    def _rest(self, num_begun: int) -> None:
        if self.state is not None and num_begun == self._num_begun:
            self._all.move(self, State.WAITING if self._has_read else State.KEPT)

    def abort(self) -> None:
        """Close at once."""
        self._leave()
        self._transport.abort()

    def _leave(self) -> None:
        self._all.move(self, None)
        handshake, self._handshake = self._handshake, None  # the task leads back here
        if handshake is not None:
            handshake.cancel()


def noting_requests(app: ASGIApp) -> ASGIApp:
    """`app`; the connection of a request notes when it begins and when its answer is whole. (Where that never
    comes, uvicorn closes the connection.)"""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get(_STATE_KEY)
        if connection is None:  # the server's start and end
            await app(scope, receive, send)
            return

        async def send_and_note(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.end()

        connection.begin()
        await app(scope, receive, send_and_note)

    return call
