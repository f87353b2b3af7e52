"""Running the application: a socket, uvicorn in this thread, and an orderly end.

With tenants, SIGHUP reads their file again. The first SIGTERM or SIGINT closes the socket to newcomers, lets
running requests end within the drain timeout, and `serve` returns; a second one does not wait. An engine that
gave up ends the server in the same way, and `serve` raises: whoever supervises the process should see it die.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn

from octavo.engine.outputs import ServedModel
from octavo.errors import ConfigError, EngineStopped
from octavo.server.app import ServerSettings, create_app

_KEEP_ALIVE_S = 30
_BACKLOG = 1024


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: a port in use is known before a model is loaded for nothing.

    Port 0 takes any free one. Raises ConfigError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = f"cannot listen on {host}, port {port}: {error}"
        raise ConfigError(f"{reason}; choose others with --host and --port") from None
    return listener


def serve(
    model: ServedModel,
    listener: socket.socket,
    settings: ServerSettings,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal comes, then drain and return. `on_ready` gets the base URL once it works.

    Raises EngineStopped when it ended because the engine gave up.
    """
    asyncio.run(build_server(model, settings, on_ready).serve(sockets=[listener]))
    if model.gave_up is not None:
        raise EngineStopped(model.gave_up)


def build_server(
    model: ServedModel, settings: ServerSettings, on_ready: Callable[[str], None] | None = None
) -> Server:
    """The server itself, for callers that run their own event loop."""
    config = uvicorn.Config(
        create_app(model, settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(settings.drain_timeout_s)),
    )
    roster = settings.roster
    if roster is None:
        return Server(config, on_ready, lambda: model.gave_up is not None)
    return Server(
        config,
        on_ready,
        lambda: model.gave_up is not None,
        before=lambda: roster.begin(model.ledger),
        on_hangup=lambda: roster.reload_soon(model.ledger),
    )


class Server(uvicorn.Server):
    """uvicorn's server with a ready callback, signals that end in status 0, and an end when `is_over`."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[str], None] | None,
        is_over: Callable[[], bool],
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        on_hangup: Callable[[], None] | None = None,
    ) -> None:
        """`before` runs before it listens; `on_hangup` is called on the event loop at each SIGHUP."""
        super().__init__(config)
        self._before = before
        self.on_hangup = on_hangup
        self._on_ready = on_ready
        self._is_over = is_over

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then say so. Raises what `before` raises."""
        if self._before is not None:
            await self._before()
        if self.on_hangup is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.on_hangup)
        try:
            await super().startup(sockets)
        except OSError as error:  # another process has begun to listen since `bind`
            raise ConfigError(f"cannot listen: {error}; choose another port with --port") from None
        if self._on_ready is not None and self.started and sockets:
            self._on_ready(base_url(sockets[0]))

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._is_over():
            self.should_exit = True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal is an orderly end here; uvicorn would raise it again afterwards and die of it."""
        if self.should_exit or sig == signal.SIGQUIT:
            self.force_exit = True
        self.should_exit = True


def base_url(listener: socket.socket) -> str:
    """http://host:port of a bound socket, with loopback where it is bound to every address."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
