"""The HTTP application: the middlewares, the table of routes, and the handlers of errors.

    uvicorn -> Targets (normalises a request's head) -> AccessLog (ids, log, counts) -> Preflights (pages)
            -> Guard (keys, hosts, pages) -> routes -> EngineClient

It depends on the EngineClient, of which tests have a double, and on no engine.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache, partial
from http import HTTPStatus
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import request_response
from starlette.types import ASGIApp

from octavo import __version__
from octavo.errors import OctavoError
from octavo.server.access import REQUEST_ID_HEADER, TRACE_HEADER, AccessLog
from octavo.server.dialects.error_shapes import on_any_exception, on_octavo_error
from octavo.server.errors import HttpRefusal, JsonObject
from octavo.server.feeds import Feeds
from octavo.server.field_list import field_list
from octavo.server.generation import (
    CUT_HEADER,
    LET_GO_HEADER,
    NOT_ENFORCED_HEADER,
    SESSION_HEADER,
    ClientGone,
    Edge,
)
from octavo.server.large_bodies import LargeBodies, ModelSizes
from octavo.server.metrics import Metrics
from octavo.server.openapi import describe, render_docs
from octavo.server.preflights import Preflights
from octavo.server.route import Handler, Route
from octavo.server.routes import CLUSTER_ROUTES, RENDER_ROUTES, REPLICA_ROUTES, ROUTES, match_of
from octavo.server.running import FrontEnd, RunningAnswers
from octavo.server.security import ClusterGuard, Guard
from octavo.server.settings import ServerSettings
from octavo.server.sse import encode_json
from octavo.server.targets import Targets
from octavo.server.tracing import open_tracing
from octavo.serving.client import EngineClient

# nginx's status for a client that disconnected: only the log and the metrics have it.
_CLIENT_CLOSED = 499


@cache
def _openapi(routes: tuple[Route, ...]) -> bytes:
    """The description for programs. It takes 40 ms, so it is built on the first request."""
    return encode_json(describe(routes))


@cache
def _docs(routes: tuple[Route, ...]) -> bytes:
    """The description for people."""
    return render_docs(routes)


class Cluster(Protocol):
    """Answers in place of the routes' handlers where replicas do the work."""

    def begin(self) -> None:
        """Called on the server's event loop when it starts."""

    async def close(self) -> None:
        """Called when the server has stopped."""

    def view(self) -> JsonObject:
        """GET /cluster."""

    async def answer(self, edge: Edge, route: Route, request: Request) -> Response:
        """The answer to a request. Raises OctavoError."""


def create_app(
    model: EngineClient,
    settings: ServerSettings,
    front_end: FrontEnd | None = None,
    cluster: Cluster | None = None,
) -> Starlette:
    """The application over one model. `front_end`: this process is one of several. On shutdown the model
    drains. `state.edge` is the routes' context. Raises ConfigError."""
    routes = ROUTES if model.generates else RENDER_ROUTES if cluster is None else CLUSTER_ROUTES
    for route in routes:
        if route.body is not None:  # 25 ms in all, which the first requests would wait for
            route.body.model_rebuild()
            field_list(route.body)
    tracing = open_tracing(settings.otel_endpoint, model.name)
    has_vllm_names = settings.metrics_compat == "vllm"
    metrics = Metrics(model.name, vllm_names=has_vllm_names, tracing=tracing, front_end=front_end)
    started_at = int(time.time()) if front_end is None else front_end.started_at
    run_id = secrets.token_hex(8) if front_end is None else front_end.run_id
    edge = Edge(
        model,
        metrics,
        Feeds(model, metrics.latency, lambda: _server_row(model, started_at), run_id),
        settings.body_bytes_max,
        LargeBodies(ModelSizes(model.context_length, model.vocab_size)),
        settings.roster,
        started_at=started_at,
        slot=None if settings.replica is None else settings.replica.slot,
        openapi=partial(_openapi, routes),
        docs=partial(_docs, routes),
        running=RunningAnswers(None if front_end is None else front_end.answers),
        cluster=None if cluster is None else cluster.view,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        edge.running.begin(asyncio.get_running_loop())
        if cluster is not None:
            cluster.begin()
        yield
        await model.drain(settings.drain_timeout_s)
        if cluster is not None:
            await cluster.close()
        edge.large_bodies.close()
        if tracing is not None:
            await tracing.close()

    app = Starlette(
        lifespan=lifespan,
        exception_handlers={
            OctavoError: on_octavo_error,
            ClientGone: _on_client_gone,
            ClientDisconnect: _on_client_gone,
            Exception: on_any_exception,
        },
    )
    app.state.edge = edge
    # Starlette's router has no routes, so every request goes to the dispatcher.
    app.router.redirect_slashes = False  # a path with a trailing slash is another path
    private = () if settings.replica is None else REPLICA_ROUTES
    handlers = frozenset(route.handler for route in (*routes, *private))
    app.router.default = _dispatcher(edge, handlers, cluster)
    _add_middlewares(app, edge, settings)
    return app


def _add_middlewares(app: Starlette, edge: Edge, settings: ServerSettings) -> None:
    """The last one added is the outermost."""
    app.add_middleware(Guard, settings=settings, identity=edge.model.identity)
    app.add_middleware(
        Preflights,
        settings=settings,
        methods=sorted({route.method for route in ROUTES}),
        exposed_headers=[
            REQUEST_ID_HEADER,
            SESSION_HEADER,
            "X-Octavo-Request",
            NOT_ENFORCED_HEADER,
            LET_GO_HEADER,
            CUT_HEADER,
            *([] if edge.cluster is None else ["X-Octavo-Replica"]),
            "Retry-After",
            TRACE_HEADER,
        ],
    )
    if settings.replica is not None:
        app.add_middleware(ClusterGuard, key=settings.replica.key)
    app.add_middleware(AccessLog, metrics=edge.metrics)
    app.add_middleware(Targets)


def _server_row(model: EngineClient, started_at: int) -> dict[str, object]:
    """The server in the live map."""
    return {
        "model": model.name,
        "context_length": model.context_length,
        "has_chat": model.has_chat_template,
        "version": __version__,
        "begun": started_at,
    }


def _dispatcher(edge: Edge, handlers: Collection[Handler], cluster: Cluster | None) -> ASGIApp:
    """An app that answers each request with the handler of its matched route, if that is one of `handlers`;
    the cluster, if any, answers in the handler's place."""

    async def dispatch(request: Request) -> Response:
        found = match_of(request.scope)
        if found.route is None or found.route.handler not in handlers:
            of_path = found.of_path
            if of_path is None or of_path.handler not in handlers:
                raise _no_route(request)
            raise _wrong_method(request, of_path)
        request.scope["path_params"] = found.path_params
        if cluster is not None:
            return await cluster.answer(edge, found.route, request)
        return await found.route.handler(edge, request)

    return request_response(dispatch)


def _no_route(request: Request) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.NOT_FOUND,
        f"there is no route {request.method} {request.url.path}",
        code="unknown_route",
    )


def _wrong_method(request: Request, route: Route) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"{request.url.path} does not take {request.method}",
        code="method_not_allowed",
        headers={"Allow": "GET, HEAD" if route.method == "GET" else route.method},
    )


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED)
