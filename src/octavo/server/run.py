"""Running the application: a socket, uvicorn in this thread, and an orderly end.

    first SIGTERM or SIGINT   no new connections; running requests may end within the drain timeout, then they
                              end with an error: the server stops (503, or an error event in a stream)
    second                    they end so now
    third                     connections are closed without an answer
    one after the end         nothing: what is open is closed, and the exit status stays what it was
    SIGHUP                    the tenants' file and the TLS files, where there are any, are read again
    SIGUSR1, SIGUSR2          nothing

An engine that gave up ends the server as the first signal does, and `serve` raises, so that the exit status
is not zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from octavo.engine.control import Control
from octavo.errors import ConfigError, EngineStopped
from octavo.server.app import create_app
from octavo.server.connections import (
    ACCEPT_AT_ONCE,
    ACCEPT_AT_ONCE_SHARED,
    BoundedConnection,
    Connections,
    connections_allowed,
    noting_requests,
    raise_descriptor_limit,
)
from octavo.server.front_end import FrontEnd
from octavo.server.hosts import is_loopback, split_address
from octavo.server.metrics_address import MetricsAddress
from octavo.server.settings import ServerSettings
from octavo.server.storms import PreemptionWatch
from octavo.server.tls import tls_context
from octavo.server.tracing import check_tracing
from octavo.server.unix_socket import unix_listener
from octavo.serving.client import EngineClient

_KEEP_ALIVE_S = 30
_BACKLOG = 1024  # connections that the kernel holds until we take them
_UNREAD_MAX_MS = 60_000  # an answer of which a client takes no byte for so long is given up
_FLUSH_S = 5.0  # for answers that are ready, once everything has ended

_log = logging.getLogger("octavo.server")


@contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """What the settings want to listen on, bound; and what else can be wrong with them, before a model is
    loaded for nothing. Raises ConfigError."""
    tls_context(settings)
    check_tracing(settings.otel_endpoint)
    if settings.unix_socket is not None:
        with unix_listener(settings.unix_socket) as listener:
            yield listener
        return
    with bind(settings.host, settings.port) as listener:
        yield listener


@dataclass(frozen=True, slots=True)
class Listeners:
    """The bound sockets of a server; `scrapes`: for /metrics alone, where it has one."""

    requests: socket.socket
    scrapes: socket.socket | None = None


@contextmanager
def listening_for_scrapes(settings: ServerSettings) -> Iterator[socket.socket | None]:
    """What `--metrics-address` wants to listen on, bound; None without it. Raises ConfigError."""
    if settings.metrics_address is None:
        yield None
        return
    host, port = split_address(settings.metrics_address, "--metrics-address")
    with bind(host, port, "another with --metrics-address") as listener:
        yield listener


def ignore_signals() -> None:
    """From the start on: signals that would end a process that does not expect them. The server takes SIGHUP
    when it is ready."""
    for one in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(one, signal.SIG_IGN)


def bind(
    host: str, port: int, others: str = "others with --host and --port", *, is_shared: bool = False
) -> socket.socket:
    """A bound socket that does not listen yet: a port in use is known before a model is loaded for nothing.

    Port 0 takes any free one. `is_shared`: other processes of this user listen on the same port, and the
    kernel gives each connection to one of them. Raises ConfigError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Every connection inherits them: a client that vanished, or reads nothing, is not kept for ever.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MAX_MS)
        # asyncio sets it where a socket names its protocol, and what is accepted here names none. Without it
        # an answer of two writes waits for the client's delayed acknowledgement: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = f"cannot listen on {host}, port {port}: {error}"
        raise ConfigError(f"{reason}; choose {others}") from None
    return listener


def serve(
    model: EngineClient,
    listener: socket.socket,
    settings: ServerSettings,
    on_ready: Callable[[str], None] | None = None,
    scrapes: socket.socket | None = None,
) -> None:
    """Serve until a signal comes, then drain and return. `on_ready` gets the base URL once it works. In the
    main thread SIGINT and SIGTERM are the server's, and do nothing once it has ended: one that comes while
    the caller closes the model must not cut that short.

    Raises EngineStopped when it ended because the engine gave up.
    """
    raise_descriptor_limit()
    server = build_server(model, settings, on_ready, scrapes=scrapes)
    _on_end_signals(server.handle_exit)
    try:
        run_server(server, model, listener)
    finally:
        _on_end_signals(signal.SIG_IGN)


def run_server(server: Server, model: EngineClient, listener: socket.socket) -> None:
    """Run its event loop here until it ends. Raises EngineStopped when it ended because the engine gave
    up."""
    # Vocabulary, templates and modules stay: looking through them for garbage stops all streams for 80 ms.
    gc.freeze()
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        gc.unfreeze()  # else the native module would be left, and say so
    if model.gave_up is not None:
        raise EngineStopped(model.gave_up)


def _on_end_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, handler)


def build_server(
    model: EngineClient,
    settings: ServerSettings,
    on_ready: Callable[[str], None] | None = None,
    front_end: FrontEnd | None = None,
    scrapes: socket.socket | None = None,
) -> Server:
    """The server itself, for callers that run their own event loop; `front_end`: it is one of several.
    `scrapes`: a bound socket on which it answers /metrics alone. Raises ConfigError."""
    app = create_app(model, settings, front_end)
    return server_of(app, model, settings, on_ready, front_end, scrapes)


def server_of(
    app: Starlette,
    model: EngineClient,
    settings: ServerSettings,
    on_ready: Callable[[str], None] | None = None,
    front_end: FrontEnd | None = None,
    scrapes: socket.socket | None = None,
    kind: type[Server] | None = None,
) -> Server:
    """The same of an application that `create_app` has made. `kind`: another class of server."""
    allowed = connections_allowed(settings.connections_max)
    connections = Connections(allowed, settings.headers_timeout_s, tls_context(settings))
    config = uvicorn.Config(
        noting_requests(app),
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        # The event loop accepts as many at a time; `Server.startup` tells the kernel to hold more.
        backlog=ACCEPT_AT_ONCE if front_end is None else ACCEPT_AT_ONCE_SHARED,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,  # all that is left by then was given up
    )
    config.load()  # which names uvicorn's class; ours makes one for each connection
    config.http_protocol_class = partial(  # type: ignore[assignment]  # it is called like the class
        BoundedConnection, connections, config.http_protocol_class
    )
    address = None if scrapes is None else MetricsAddress(scrapes, app.state.edge, settings)
    return (kind or Server)(config, model, settings, connections, on_ready, front_end, address)


class Server(uvicorn.Server):
    """uvicorn's server, with a ready callback, and an end in which every request is answered."""

    def __init__(
        self,
        config: uvicorn.Config,
        model: EngineClient,
        settings: ServerSettings,
        connections: Connections,
        on_ready: Callable[[str], None] | None,
        front_end: FrontEnd | None = None,
        metrics_address: MetricsAddress | None = None,
    ) -> None:
        super().__init__(config)
        self._metrics_address = metrics_address
        self._front_end = front_end
        self._model = model
        self.settings = settings
        self._connections = connections
        self._on_ready = on_ready
        self._storms = PreemptionWatch()
        self._looking: asyncio.Task[None] | None = None
        self._num_signals = 0
        self.hurry = asyncio.Event()  # set: requests that still run are to end now
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then say so. Raises what the engine refuses tenants' bounds with."""
        self._loop = asyncio.get_running_loop()
        if self.settings.roster is not None:
            await self.settings.roster.begin(self._control)
        if self._front_end is None and threading.current_thread() is threading.main_thread():
            self._loop.add_signal_handler(signal.SIGHUP, self.on_hangup)
        try:
            await super().startup(sockets)
            for listener in sockets or []:
                listener.listen(_BACKLOG)
            if self._metrics_address is not None:
                await self._metrics_address.begin()
        except OSError as error:  # another process has begun to listen since `bind`
            raise ConfigError(f"cannot listen: {error}; choose another port with --port") from None
        if not (self.started and sockets):
            return
        url = base_url(sockets[0], "http" if self._connections.tls is None else "https")
        _log.info("serving %s on %s", self._model.name, url)
        if self._on_ready is not None:
            self._on_ready(url)

    def command(self, word: str) -> None:
        """What a supervisor says: "stop", as a signal would, or "hangup". Any thread."""
        if word == "stop":
            self.handle_exit(signal.SIGTERM, None)
        elif word == "hangup" and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.on_hangup)

    def on_hangup(self) -> None:
        """SIGHUP. On the event loop."""
        if self._connections.tls is not None:
            self._reload_tls()
        if self.settings.roster is not None:
            self.settings.roster.reload_soon(self._control)
        elif self._connections.tls is None:
            _log.warning(
                "SIGHUP: nothing is read again, because there is no tenants file (--tenants) and no TLS "
                "(--tls-cert)"
            )

    @property
    def _control(self) -> Control | None:
        return self._model.control if self._model.generates else None

    def _reload_tls(self) -> None:
        try:
            # A context that is loaded again keeps the old certificate beside one with another kind of key.
            self._connections.tls = tls_context(self.settings)
        except ConfigError as error:
            _log.error("SIGHUP: the TLS files stay as they were: %s", error)
        else:
            _log.info("SIGHUP: new connections get the certificate that is in the TLS files now")

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._model.gave_up is not None:
            self.should_exit = True
        is_first = self._front_end is None or self._front_end.index == 0
        if is_first and self._storms.is_due() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_for_storms())  # a step may take long
        return await super().on_tick(counter)

    async def _look_for_storms(self) -> None:
        self._storms.look(await self._model.stats())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal is an orderly end here; uvicorn would raise it again afterwards and die of it."""
        self._num_signals += 1
        self.should_exit = True
        if self._loop is not None and (self._num_signals == 2 or sig == signal.SIGQUIT):
            with contextlib.suppress(RuntimeError):  # what asyncio says of a loop that has ended
                self._loop.call_soon_threadsafe(self.hurry.set)
        if self._num_signals > 2:
            self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, let requests end or answer that they cannot, then close what is open."""
        for server in self.servers:
            server.close()
        self._connections.abort_all(only_handshakes=True)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self.drain_requests()
        await self._flush()
        if self._metrics_address is not None:
            self._metrics_address.end()
        await super().shutdown(sockets)
        _log.info("stopped")

    async def drain_requests(self) -> None:
        """Running requests may end within the drain timeout, or until a second signal; then they end."""
        num_open, timeout_s = self._model.num_open, self.settings.drain_timeout_s
        if num_open:
            _log.info("stopping: %d requests have %.0f s to end (a second signal: now)", num_open, timeout_s)
        drain = asyncio.ensure_future(self._model.drain(timeout_s))
        hurry = asyncio.ensure_future(self.hurry.wait())
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not drain.done():
            await self._model.drain(0.0)
        if not await drain:
            _log.warning("stopping: what still ran was ended, and its clients were told")

    async def _flush(self) -> None:
        """Let answers that are ready reach their clients; who does not read them is left."""
        await self._until_empty(self.server_state.connections)
        self._connections.abort_all()
        await self._until_empty(self.server_state.tasks)  # they see that their clients are gone

    async def _until_empty(self, left: Sized) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                while len(left) and not self.force_exit:
                    await asyncio.sleep(0.02)


def base_url(listener: socket.socket, scheme: str = "http") -> str:
    """http://host:port of a bound socket, with loopback where it is bound to every address; unix:PATH of a
    socket file."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"


def reach_in_words(settings: ServerSettings) -> str:
    """Who can reach a server with these settings."""
    host = settings.host
    if settings.unix_socket is not None:
        return "who may write to that file: its owner and its group"
    if is_loopback(host):
        return "this machine alone"
    every = host in ("", "0.0.0.0", "::")
    return f"every address of this machine ({host or '0.0.0.0'})" if every else f"whoever reaches {host}"
