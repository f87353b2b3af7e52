"""Runs the application: a bound socket, uvicorn in this thread, and a graceful shutdown.

    first SIGTERM or SIGINT   accepts no connections; running requests have the drain timeout to end, then
                              they end with an error (503, or an error event in a stream)
    second                    running requests end with that error now
    third                     closes connections without an answer
    after shutdown            ignored: resources are closed, and the exit status does not change
    SIGHUP                    reads the tenants file and the TLS files again, if there are any
    SIGUSR1, SIGUSR2          ignored

If the engine gave up, the server shuts down as after the first signal, and `serve` raises, so that the exit
status is not zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from octavo.engine.control import Control
from octavo.engine.outputs import EngineStats
from octavo.errors import ConfigError, EngineStopped
from octavo.server.app import create_app
from octavo.server.connections import (
    ACCEPT_AT_ONCE,
    ACCEPT_AT_ONCE_SHARED,
    BoundedConnection,
    Connections,
    connections_allowed,
    raise_descriptor_limit,
    track_requests,
)
from octavo.server.hosts import is_loopback, split_address
from octavo.server.metrics_address import MetricsAddress
from octavo.server.running import FrontEnd
from octavo.server.settings import ServerSettings
from octavo.server.tls import tls_context
from octavo.server.tracing import check_tracing
from octavo.server.unix_socket import unix_listener
from octavo.serving.client import EngineClient

_KEEP_ALIVE_S = 30
_BACKLOG = 1024  # connections that the kernel queues until they are accepted
_UNREAD_MAX_MS = 60_000  # a connection ends when the client acknowledges nothing for this long
_FLUSH_S = 5.0  # to write answers that are ready, once all requests have ended
_STORM, _STORM_PERIOD_S = 20, 10.0  # so many preemptions in that time are logged

_log = logging.getLogger("octavo.server")


@contextmanager
def open_listener(settings: ServerSettings) -> Iterator[socket.socket]:
    """The socket that the settings name, bound. Checks the files and packages that they name too, before a
    model is loaded. Raises ConfigError."""
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
    """The bound sockets of a server; `scrapes` is the one for /metrics alone, if it has one."""

    requests: socket.socket
    scrapes: socket.socket | None = None


@contextmanager
def open_metrics_listener(settings: ServerSettings) -> Iterator[socket.socket | None]:
    """The socket of `--metrics-address`, bound; None without it. Raises ConfigError."""
    if settings.metrics_address is None:
        yield None
        return
    host, port = split_address(settings.metrics_address, "--metrics-address")
    with bind(host, port, "another with --metrics-address") as listener:
        yield listener


def ignore_signals() -> None:
    """Ignore signals whose default ends the process. The server handles SIGHUP once it is ready."""
    for one in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(one, signal.SIG_IGN)


def bind(
    host: str, port: int, others: str = "others with --host and --port", *, is_shared: bool = False
) -> socket.socket:
    """A bound socket that does not listen yet: a port in use is found before a model is loaded.

    Port 0 takes any free one. `is_shared`: other processes of this user listen on the same port, and the
    kernel distributes the connections. Raises ConfigError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Connections inherit these: one whose client vanished, or reads nothing, is closed in the end.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MAX_MS)
        # asyncio sets it only on sockets created with a protocol number; these have none. Without it an
        # answer of two writes waits 40 ms for the client's delayed acknowledgement.
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
    """Serve until a signal arrives, then drain and return. Calls `on_ready` with the base URL once it serves.

    In the main thread it handles SIGINT and SIGTERM, and ignores them after its end, so that none interrupts
    the caller while it closes the model. Raises EngineStopped if the engine gave up.
    """
    raise_descriptor_limit()
    server = build_server(model, settings, on_ready, scrapes=scrapes)
    _on_end_signals(server.handle_exit)
    try:
        run_server(server, model, listener)
    finally:
        _on_end_signals(signal.SIG_IGN)


def run_server(server: Server, model: EngineClient, listener: socket.socket) -> None:
    """Run the server's event loop in this thread until it ends. Raises EngineStopped if the engine gave
    up."""
    # Vocabulary, templates and modules are permanent; scanning them for garbage stops all streams for 80 ms.
    gc.freeze()
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        gc.unfreeze()  # else the native module reports leaks at exit
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
    """The server, for callers that run their own event loop. `front_end`: which of several it is. `scrapes`:
    a bound socket for /metrics alone. Raises ConfigError."""
    app = create_app(model, settings, front_end)
    return make_server(app, model, settings, on_ready, front_end, scrapes)


def make_server(
    app: Starlette,
    model: EngineClient,
    settings: ServerSettings,
    on_ready: Callable[[str], None] | None = None,
    front_end: FrontEnd | None = None,
    scrapes: socket.socket | None = None,
    kind: type[Server] | None = None,
) -> Server:
    """As `build_server`, for an application that `create_app` made. `kind`: a subclass of Server."""
    allowed = connections_allowed(settings.connections_max)
    connections = Connections(allowed, settings.headers_timeout_s, tls_context(settings))
    config = uvicorn.Config(
        track_requests(app),
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        # How many the event loop accepts at once; `Server.startup` sets the kernel's queue.
        backlog=ACCEPT_AT_ONCE if front_end is None else ACCEPT_AT_ONCE_SHARED,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,  # requests have ended by then
    )
    config.load()  # sets uvicorn's protocol class, which ours wraps
    config.http_protocol_class = partial(  # type: ignore[assignment]  # has the class's signature
        BoundedConnection, connections, config.http_protocol_class
    )
    address = None if scrapes is None else MetricsAddress(scrapes, app.state.edge, settings)
    return (kind or Server)(config, model, settings, connections, on_ready, front_end, address)


class PreemptionMonitor:
    """Logs preemption storms: memory so short that sequences are preempted all the time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._preemptions = 0

    def is_due(self) -> bool:
        """Whether a period has passed since the last `check`."""
        return self._clock() - self._since >= _STORM_PERIOD_S

    def check(self, stats: EngineStats) -> None:
        """Compare with the counts of a period ago, and log a storm."""
        now = self._clock()
        num = stats.preemptions - self._preemptions
        if num >= _STORM:
            _log.warning(
                "memory is short: %d preemptions in %.0f s, %d of %d blocks held, %d sequences wait; more "
                "--kv-memory, fewer --max-seqs or shorter answers would help (/v1/kv lists the holders)",
                num,
                now - self._since,
                stats.blocks_held,
                stats.blocks_total,
                stats.waiting,
            )
        self._since, self._preemptions = now, stats.preemptions


class Server(uvicorn.Server):
    """uvicorn's server with a ready callback, and a shutdown in which every request is answered."""

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
        self._preemption_monitor = PreemptionMonitor()
        self._preemption_check: asyncio.Task[None] | None = None
        self._num_signals = 0
        self.end_now = asyncio.Event()  # set: running requests end now
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call `on_ready`. Raises ConfigError, or the engine's refusal of tenants' bounds."""
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
        """Handle a supervisor's message: "stop", as SIGTERM, or "hangup". From any thread."""
        if word == "stop":
            self.handle_exit(signal.SIGTERM, None)
        elif word == "hangup" and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.on_hangup)

    def on_hangup(self) -> None:
        """Handle SIGHUP. On the event loop."""
        if self._connections.tls is not None:
            self._reload_tls()
        if self.settings.roster is not None:
            self.settings.roster.reload_soon(self._control)
        elif self._connections.tls is None:
            _log.warning(
                "SIGHUP: nothing to read again: there is no tenants file (--tenants) and no TLS (--tls-cert)"
            )

    @property
    def _control(self) -> Control | None:
        return self._model.control if self._model.generates else None

    def _reload_tls(self) -> None:
        try:
            # A new context: loading into the old one would keep a certificate of another key type as well.
            self._connections.tls = tls_context(self.settings)
        except ConfigError as error:
            _log.error("SIGHUP: the TLS files stay as they were: %s", error)
        else:
            _log.info("SIGHUP: new connections get the certificate that was read again")

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; called ten times a second."""
        if self._model.gave_up is not None:
            self.should_exit = True
        is_first = self._front_end is None or self._front_end.index == 0
        check = self._preemption_check
        if is_first and self._preemption_monitor.is_due() and (check is None or check.done()):
            # a task: the answer comes after the running step, which may take long
            self._preemption_check = asyncio.create_task(self._check_preemptions())
        return await super().on_tick(counter)

    async def _check_preemptions(self) -> None:
        self._preemption_monitor.check(await self._model.stats())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down gracefully; uvicorn's own handler would raise the signal again afterwards."""
        self._num_signals += 1
        self.should_exit = True
        if self._loop is not None and (self._num_signals == 2 or sig == signal.SIGQUIT):
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self.end_now.set)
        if self._num_signals > 2:
            self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, drain requests, then close all connections."""
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
        """Wait for running requests until the drain timeout or a second signal; then end them."""
        num_open, timeout_s = self._model.num_open, self.settings.drain_timeout_s
        if num_open:
            _log.info("stopping: %d requests have %.0f s to end (a second signal: now)", num_open, timeout_s)
        drain = asyncio.ensure_future(self._model.drain(timeout_s))
        end_now = asyncio.ensure_future(self.end_now.wait())
        await asyncio.wait({drain, end_now}, return_when=asyncio.FIRST_COMPLETED)
        end_now.cancel()
        if not drain.done():
            await self._model.drain(0.0)
        if not await drain:
            _log.warning("stopping: requests that still ran ended with an error")

    async def _flush(self) -> None:
        """Write answers that are ready; connections whose clients do not read are aborted."""
        await self._until_empty(self.server_state.connections)
        self._connections.abort_all()
        await self._until_empty(self.server_state.tasks)  # they end when their clients are gone

    async def _until_empty(self, left: Sized) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                while len(left) and not self.force_exit:
                    await asyncio.sleep(0.02)


def base_url(listener: socket.socket, scheme: str = "http") -> str:
    """http://host:port of a bound socket, loopback if it is bound to every address; unix:PATH for a socket
    file."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{shown}]:{port}" if ":" in shown else f"{scheme}://{shown}:{port}"


def describe_reach(settings: ServerSettings) -> str:
    """Which clients can reach a server with these settings, in words."""
    host = settings.host
    if settings.unix_socket is not None:
        return "the owner and the group of that file"
    if is_loopback(host):
        return "this machine alone"
    every = host in ("", "0.0.0.0", "::")
    return f"every address of this machine ({host or '0.0.0.0'})" if every else f"clients that reach {host}"
