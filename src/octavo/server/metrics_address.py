"""GET /metrics on an address of its own (`--metrics-address`), for routers, which scrape 20 times a second
and may send no key.

It needs no key. Host and Origin are checked as on a server without keys; other paths are a 404. Its
connections are counted apart, so that scrapes never displace clients. A scrape waits up to `STATS_TIMEOUT_S`
for the running step; after that it returns the engine's numbers of the scrape before.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from http import HTTPStatus

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from octavo.server.connections import BoundedConnection, Connections, track_requests
from octavo.server.dialects.error_shapes import error_response
from octavo.server.errors import HttpRefusal
from octavo.server.generation import Edge
from octavo.server.hosts import split_address
from octavo.server.metrics import CONTENT_TYPE
from octavo.server.security import Guard
from octavo.server.settings import ServerSettings

STATS_TIMEOUT_S = 0.02
OLDER_S = 1.0  # metrics that no router reads may be this old
CONNECTIONS_MAX = 64
_BACKLOG = 16
_KEEP_ALIVE_S = 30


class MetricsAddress:
    """The metrics listener of a server, on the server's event loop."""

    def __init__(self, listener: socket.socket, edge: Edge, settings: ServerSettings) -> None:
        self._listener = listener
        app = track_requests(Guard(metrics_app(edge), _without_keys(settings), edge.model.identity))
        self._config = uvicorn.Config(
            app,
            http="h11",
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._config.load()
        self._connections = Connections(CONNECTIONS_MAX, settings.headers_timeout_s, tls=None)
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        """Listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, sock=self._listener, backlog=_BACKLOG)

    def end(self) -> None:
        """Stop listening, and close all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._connections.abort_all()

    def _connect(self) -> BoundedConnection:
        return BoundedConnection(
            self._connections,
            self._config.http_protocol_class,
            server_state=self._state,
            app_state={},
            config=self._config,
        )


def metrics_app(edge: Edge) -> ASGIApp:
    """An application that answers GET and HEAD of /metrics, and nothing else."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD") or scope["path"] != "/metrics":
            route = f"{scope['method']} {scope['path'][:100]}"
            what = f"there is no route {route} at this address; allowed: GET /metrics"
            refusal = HttpRefusal(HTTPStatus.NOT_FOUND, what, code="unknown_route")
            await error_response(refusal, scope)(scope, receive, send)
            return
        text = edge.metrics.render(await edge.model.stats(STATS_TIMEOUT_S), OLDER_S)
        await Response(text, headers={"Content-Type": CONTENT_TYPE})(scope, receive, send)

    return answer


def _without_keys(settings: ServerSettings) -> ServerSettings:
    """The settings that the guard checks requests with."""
    assert settings.metrics_address is not None
    host, _ = split_address(settings.metrics_address, "--metrics-address")
    return replace(
        settings,
        host=host,
        unix_socket=None,
        api_keys=(),
        key_file=None,
        roster=None,
        insecure=True,
        allowed_origins=(),
    )
