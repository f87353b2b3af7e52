"""Connections: how long one may take to say what it wants, and how many there may be.

    connection_made ── waiting ──(headers are whole)── busy ──(answered)── kept ──(first byte)── waiting ...
                          │                                                  │
                 headers_timeout_s: closed                      uvicorn's keep-alive: closed

A connection costs a file descriptor. When there is no room for a newcomer, one that waits makes room for it,
then one that is kept, the oldest of the address that has most: so whoever opens a thousand connections and
says nothing loses them to whoever asks for something. One whose request is being answered is never closed; if
all are, the newcomer is told 503.

With TLS a connection has its place, and its time, from its first moment too: shaking hands is part of what
must be done within `headers_timeout_s`. A newcomer for whom there is no room is then cut off without a word.

Addresses come from the socket. A slow reader is the kernel's affair (`run.bind` sets TCP_USER_TIMEOUT).
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import ssl
from dataclasses import dataclass, field
from http import HTTPStatus

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from octavo.errors import ConfigError
from octavo.server.errors import HttpRefusal, error_body
from octavo.server.sse import encode_json
from octavo.server.tls import TlsFiles

CONNECTIONS_MAX = 4096
ACCEPT_AT_ONCE = 128  # connections that the event loop takes before it looks at any of them
_RESERVE = 64  # descriptors for files, databases and what a library opens
_CONNECTIONS_MIN = 16
_TLS_GOODBYE_S = 5.0  # for a client's word of farewell
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


@dataclass(slots=True)
class _Peer:
    """The connections of one address. Dictionaries are in order of time."""

    waiting: dict[BoundedProtocol, None] = field(default_factory=dict)
    kept: dict[BoundedProtocol, None] = field(default_factory=dict)
    num_busy: int = 0

    @property
    def num_idle(self) -> int:
        return len(self.waiting) + len(self.kept)

    @property
    def num_all(self) -> int:
        return self.num_idle + self.num_busy

    def oldest_idle(self) -> BoundedProtocol | None:
        """One that waits goes before one that is kept."""
        return next(iter(self.waiting), None) or next(iter(self.kept), None)


class Connections:
    """All connections of a server, by address. On its event loop alone."""

    def __init__(self, total_max: int, headers_timeout_s: float) -> None:
        self.total_max = total_max
        # A proxy in front is one address, so that much is left to it.
        self.address_max = max(1, total_max // 2)
        self.headers_timeout_s = headers_timeout_s
        self.num_all = 0
        self._peers: dict[str, _Peer] = {}

    def enter(self, protocol: BoundedProtocol) -> bool:
        """Let a newcomer wait, perhaps in the place of another; False when all are busy."""
        peer = self._peers.setdefault(protocol.address, _Peer())
        if peer.num_all >= self.address_max:
            full = not self._evict(peer, f"{self.address_max:,} of {protocol.address}")
        elif self.num_all >= self.total_max:
            crowd = max(self._peers.values(), key=lambda one: one.num_idle)
            full = not self._evict(crowd, f"{self.total_max:,} in all")
        else:
            full = False
        if full:
            _log.warning("connection refused: all are busy (%s has %d)", protocol.address, peer.num_all)
            self._forget_empty(protocol.address)
            return False
        # Looked up again: where the one that was closed was its address' last, that address was forgotten.
        self._peers.setdefault(protocol.address, _Peer()).waiting[protocol] = None
        self.num_all += 1
        return True

    def note_busy(self, protocol: BoundedProtocol) -> None:
        """Its request is known, and will be answered."""
        peer = self._peers[protocol.address]
        peer.waiting.pop(protocol, None)
        peer.kept.pop(protocol, None)
        peer.num_busy += 1

    def note_kept(self, protocol: BoundedProtocol) -> None:
        """It was answered, and may ask again."""
        peer = self._peers[protocol.address]
        peer.num_busy -= 1
        peer.kept[protocol] = None

    def note_waiting(self, protocol: BoundedProtocol) -> None:
        """It has begun to ask again."""
        peer = self._peers[protocol.address]
        peer.kept.pop(protocol, None)
        peer.waiting[protocol] = None

    def leave(self, protocol: BoundedProtocol) -> None:
        """It is gone."""
        peer = self._peers[protocol.address]
        if protocol in peer.waiting:
            del peer.waiting[protocol]
        elif protocol in peer.kept:
            del peer.kept[protocol]
        else:
            peer.num_busy -= 1
        self.num_all -= 1
        self._forget_empty(protocol.address)

    def _evict(self, peer: _Peer, what: str) -> bool:
        """Close the oldest idle connection of an address; False where it has none."""
        oldest = peer.oldest_idle()
        if oldest is None:
            return False
        _log.warning("connections: %s, which is the most allowed: the oldest idle one is closed", what)
        oldest.evict()
        return True

    def _forget_empty(self, address: str) -> None:
        if self._peers[address].num_all == 0:
            del self._peers[address]


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, perhaps behind TLS, with a time limit for headers and a place among
    `Connections`."""

    def __init__(
        self,
        connections: Connections,
        tls: TlsFiles,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = connections
        self._timer: asyncio.TimerHandle | None = None
        self._is_in = False  # among `connections`
        self._is_busy = False
        self._tls = tls
        self._hands: asyncio.Task[None] | None = None  # they are being shaken
        self._early: list[bytes] = []  # what came before the task could say that they were
        self._is_lost = False
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A newcomer: it waits, or is told that there is no room."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else "local"
        self._is_in = self._all.enter(self)
        if self._is_in:
            self._start_timer()
            if self._tls.context is not None:
                self._hands = self.loop.create_task(self._shake_hands(transport, self._tls.context))
        elif self._tls.context is not None:
            transport.abort()
        else:
            transport.write(_FULL)
            transport.close()

    async def _shake_hands(self, plain: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """From here on the connection is encrypted, or gone."""
        plain.pause_reading()
        try:
            made = await self.loop.start_tls(
                plain,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._all.headers_timeout_s,
                ssl_shutdown_timeout=_TLS_GOODBYE_S,
            )
        except OSError as error:  # of TLS, or of the network
            _log.debug("connection of %s closed: TLS: %s", self.address, error)
            made = None
        self._hands = None
        if self._is_lost:
            return
        if made is None or made.is_closing():
            self.connection_lost(None)
            return
        super().connection_made(made)
        early, self._early = self._early, []
        if early:
            self.data_received(b"".join(early))

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone, for whatever reason."""
        self._is_lost = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        if self._is_in:
            self._is_in = False
            self._all.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; where none is being answered they begin one, which must be whole in time."""
        if not self._is_in:
            return
        if self._hands is not None:
            self._early.append(data)
            return
        if not self._is_busy and self._timer is None:
            self._all.note_waiting(self)
            self._start_timer()
        super().data_received(data)

    def handle_events(self) -> None:
        """What the bytes so far come to; a new cycle means that headers were whole."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self._is_busy and self._is_in:
            self._stop_timer()
            self._is_busy = True
            self._all.note_busy(self)

    def on_response_complete(self) -> None:
        """Answered: the connection is kept for a while, or a request that came early is handled now."""
        if self._is_busy and self._is_in:
            self._is_busy = False
            self._all.note_kept(self)
        super().on_response_complete()

    def evict(self) -> None:
        """Make room for another. Nothing is being answered here."""
        if self._is_in:
            self._is_in = False
            self._all.leave(self)
        self.transport.abort()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._all.headers_timeout_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        _log.warning(
            "connection of %s closed: no whole request headers within %.0f s",
            self.address,
            self._all.headers_timeout_s,
        )
        self.evict()
