"""The HTTP application: routes, the guard in front of them, and errors in one shape behind them.

    uvicorn -> Guard (keys, hosts) -> count answers -> routes -> ServedModel

It knows the protocol `ServedModel` and nothing of engines, so a double (`octavo.server.testing`) serves in
tests.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.engine.outputs import ServedModel
from octavo.errors import ConfigError, EngineStopped, OctavoError
from octavo.server.chat import chat_completions
from octavo.server.completions import completions
from octavo.server.errors import (
    JsonObject,
    json_response,
    on_any_exception,
    on_http_exception,
    on_octavo_error,
)
from octavo.server.generation import ClientGone, Edge
from octavo.server.kv import (
    create_pin,
    delete_pin,
    list_pins,
    list_requests,
    renew_pin,
    resize_pool,
    show_kv,
    show_map,
    show_request,
)
from octavo.server.metrics import CONTENT_TYPE, Metrics
from octavo.server.roster import Roster
from octavo.server.security import Guard
from octavo.server.sessions import (
    create_session,
    delete_session,
    list_sessions,
    resume_session,
    show_session,
    suspend_session,
)
from octavo.server.tokenize import detokenize, tokenize, tokenizer_info

# Routes with a part that a client chooses, for metrics.
_PARAMETRIC = (
    ("/v1/models/", "/v1/models/{model_id}"),
    ("/v1/kv/pins/", "/v1/kv/pins/{name}"),
    ("/v1/requests/", "/v1/requests/{request_id}"),
    ("/v1/sessions/", "/v1/sessions/{session_id}"),
)
# nginx's word for a client that left; nobody reads it but the metrics.
_CLIENT_CLOSED = 499


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the edge is told. `host` is the address it is bound to, which names it in Host headers.

    Raises ConfigError for keys that belong to nobody beside tenants whose keys say who they are.
    """

    host: str = "127.0.0.1"
    api_keys: tuple[str, ...] = ()
    body_bytes_max: int = 8 * 2**20
    drain_timeout_s: float = 30.0
    roster: Roster | None = None  # the tenants; None: there are none

    def __post_init__(self) -> None:
        if self.api_keys and self.roster is not None:
            raise ConfigError(
                "--api-key (or OCTAVO_API_KEY) and --tenants are both given; allowed: one of them (a tenant "
                "with operator = true may do what a key without tenants may)"
            )


def create_app(model: ServedModel, settings: ServerSettings) -> FastAPI:
    """The application over one model. When it shuts down, the model drains."""
    metrics = Metrics(model.stats)
    edge = Edge(model, metrics, settings.body_bytes_max, settings.roster)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await model.drain(settings.drain_timeout_s)

    app = FastAPI(title="Octavo", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_routes(app, edge)
    app.add_exception_handler(OctavoError, on_octavo_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, on_any_exception)
    routes = frozenset(path for route in app.routes if isinstance(path := getattr(route, "path", None), str))
    app.add_middleware(_AnswerCounter, metrics=metrics, routes=routes)
    # Outermost: added last.
    app.add_middleware(Guard, host=settings.host, api_keys=settings.api_keys, roster=settings.roster)
    return app


def _add_routes(app: FastAPI, edge: Edge) -> None:
    """Every route that exists."""
    begun = int(time.time())

    def model_object() -> JsonObject:
        return {
            "id": edge.model.name,
            "object": "model",
            "created": begun,
            "owned_by": "octavo",
            "max_model_len": edge.model.context_length,
        }

    def on(
        edge_route: Callable[[Edge, Request], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def route(request: Request) -> Response:
            return await edge_route(edge, request)

        return route

    async def health(request: Request) -> Response:
        if edge.model.gave_up is not None:
            raise EngineStopped(edge.model.gave_up)
        return json_response({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(edge.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def list_models(request: Request) -> Response:
        return json_response({"object": "list", "data": [model_object()]})

    async def show_model(request: Request) -> Response:
        edge.check_model(request.path_params["model_id"])
        return json_response(model_object())

    app.add_route("/health", health, ["GET"])
    app.add_route("/metrics", metrics, ["GET"])
    app.add_route("/v1/models", list_models, ["GET"])
    app.add_route("/v1/models/{model_id:path}", show_model, ["GET"])
    app.add_route("/v1/chat/completions", on(chat_completions), ["POST"])
    app.add_route("/v1/completions", on(completions), ["POST"])
    app.add_route("/tokenize", on(tokenize), ["POST"])
    app.add_route("/detokenize", on(detokenize), ["POST"])
    app.add_route("/tokenizer_info", on(tokenizer_info), ["GET"])
    app.add_route("/v1/kv", on(show_kv), ["GET"])
    app.add_route("/v1/kv", on(resize_pool), ["PATCH"])
    app.add_route("/v1/kv/map", on(show_map), ["GET"])
    app.add_route("/v1/kv/pins", on(list_pins), ["GET"])
    app.add_route("/v1/kv/pins", on(create_pin), ["POST"])
    app.add_route("/v1/kv/pins/{name}", on(renew_pin), ["PATCH"])
    app.add_route("/v1/kv/pins/{name}", on(delete_pin), ["DELETE"])
    app.add_route("/v1/sessions", on(list_sessions), ["GET"])
    app.add_route("/v1/sessions", on(create_session), ["POST"])
    app.add_route("/v1/sessions/{session_id}", on(show_session), ["GET"])
    app.add_route("/v1/sessions/{session_id}", on(delete_session), ["DELETE"])
    app.add_route("/v1/sessions/{session_id}/suspend", on(suspend_session), ["POST"])
    app.add_route("/v1/sessions/{session_id}/resume", on(resume_session), ["POST"])
    app.add_route("/v1/requests", on(list_requests), ["GET"])
    app.add_route("/v1/requests/{request_id}", on(show_request), ["GET"])


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED)


class _AnswerCounter:
    """ASGI middleware that counts answers by route and status, and nothing that a client could make up."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            self._metrics.count_answer(self._route(scope["path"]), status)

    def _route(self, path: str) -> str:
        for prefix, route in _PARAMETRIC:
            if path.startswith(prefix):
                return route
        return path if path in self._routes else "other"
