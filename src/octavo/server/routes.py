"""The table of all routes: access, bodies and statuses.

The application, the guard, the metrics' labels, /openapi.json and /docs are generated from it. Paths that are
not in it do not exist, and tenants may call only the routes marked for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from starlette.routing import compile_path
from starlette.types import Scope

from octavo.server import about, kv, sessions, ui
from octavo.server.chat import chat_completions, check_chat_body
from octavo.server.completions import check_completion, completions
from octavo.server.dialects.anthropic_routes import ANTHROPIC_ROUTES
from octavo.server.dialects.ollama_routes import OLLAMA_ROUTES
from octavo.server.dialects.responses_routes import RESPONSES_ROUTES
from octavo.server.embeddings import EmbeddingsBody, check_embeddings, embeddings
from octavo.server.openai_schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from octavo.server.render import render_chat, render_completions
from octavo.server.replica_feed import replica_feed
from octavo.server.route import Access, Route, Spread
from octavo.server.tokenize import check_detokenize, check_tokenize, detokenize, tokenize, tokenizer_info
from octavo.server.watch import watch_pool

_OPEN, _TENANT, _OPERATOR = Access.OPEN, Access.TENANT, Access.OPERATOR
_GENERATES = (404, 409, 429, 500, 503)
_FROM_ENGINE = (503,)  # answered by the engine's thread, between steps

ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/",
        ui.front,
        _OPEN,
        "Ollama's status text; redirects browsers to the live map",
        Spread.RELAY,
        content_type="text/plain",
        errors=(307,),
    ),
    Route(
        "GET",
        "/ui",
        ui.page,
        _OPEN,
        "The live map and the playground",
        Spread.RELAY,
        content_type="text/html",
    ),
    Route(
        "GET",
        "/ui/{name:path}",
        ui.asset,
        _OPEN,
        "The page's files",
        Spread.RELAY,
        content_type="text/javascript",
        errors=(404,),
    ),
    Route(
        "GET", "/health", about.health, _OPEN, "Whether the engine serves", Spread.RELAY, errors=_FROM_ENGINE
    ),
    Route("GET", "/ping", about.health, _OPEN, "The same", Spread.RELAY, errors=_FROM_ENGINE),
    Route("GET", "/version", about.version, _TENANT, "Octavo's version", Spread.RELAY),
    Route("GET", "/openapi.json", about.openapi, _TENANT, "This description", Spread.RELAY),
    Route("GET", "/docs", about.docs, _TENANT, "The same as HTML", Spread.RELAY, content_type="text/html"),
    Route(
        "GET",
        "/metrics",
        about.metrics,
        _OPERATOR,
        "Prometheus metrics",
        Spread.ALL,
        content_type="text/plain",
    ),
    Route(
        "GET",
        "/kv_event_sources",
        about.kv_event_sources,
        _OPERATOR,
        "Where KV events are sent, by rank; {} if none are",
        Spread.ALL,
    ),
    Route("GET", "/v1/models", about.list_models, _TENANT, "The served model, as a list", Spread.LOAD),
    Route(
        "GET",
        "/v1/models/{model_id:path}",
        about.show_model,
        _TENANT,
        "The served model",
        Spread.LOAD,
        errors=(404,),
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        _TENANT,
        "Answer a chat",
        Spread.PREFIX,
        body=ChatBody,
        check=check_chat_body,
        errors=_GENERATES,
        streams=True,
    ),
    Route(
        "POST",
        "/v1/completions",
        completions,
        _TENANT,
        "Continue one or more prompts",
        Spread.PREFIX,
        body=CompletionBody,
        check=check_completion,
        errors=_GENERATES,
        streams=True,
    ),
    Route(
        "POST",
        "/v1/chat/completions/render",
        render_chat,
        _TENANT,
        "Render a chat: its tokens and sampling parameters, in vLLM's format",
        Spread.RELAY,
        body=ChatBody,
        check=check_chat_body,
        errors=(404, 429, 503),
    ),
    Route(
        "POST",
        "/v1/completions/render",
        render_completions,
        _TENANT,
        "The same of one or more prompts, as an array",
        Spread.RELAY,
        body=CompletionBody,
        check=check_completion,
        errors=(404, 429, 503),
    ),
    Route(
        "POST",
        "/v1/embeddings",
        embeddings,
        _TENANT,
        "The vectors of one or more texts",
        Spread.LOAD,
        body=EmbeddingsBody,
        check=check_embeddings,
        errors=_GENERATES,
    ),
    Route(
        "POST",
        "/tokenize",
        tokenize,
        _TENANT,
        "The tokens of a prompt or a chat",
        Spread.RELAY,
        body=TokenizeBody,
        check=check_tokenize,
        errors=(404, 429, 503),
    ),
    Route(
        "POST",
        "/detokenize",
        detokenize,
        _TENANT,
        "The text of tokens",
        Spread.RELAY,
        body=DetokenizeBody,
        check=check_detokenize,
        errors=(404,),
    ),
    Route(
        "GET",
        "/tokenizer_info",
        tokenizer_info,
        _TENANT,
        "The tokenizer's configuration",
        Spread.RELAY,
    ),
    Route(
        "GET",
        "/v1/kv",
        kv.show_kv,
        _TENANT,
        "Blocks by state and holder, pins, events",
        Spread.REPLICA,
        errors=_FROM_ENGINE,
    ),
    Route(
        "PATCH",
        "/v1/kv",
        kv.resize_pool,
        _OPERATOR,
        "Resize the pool, or set the latency target",
        Spread.REPLICA,
        body=kv.ResizeBody,
        errors=(409, 503),
    ),
    Route(
        "GET",
        "/v1/kv/map",
        kv.show_map,
        _TENANT,
        "Every block and its owners",
        Spread.REPLICA,
        errors=_FROM_ENGINE,
    ),
    Route(
        "GET",
        "/v1/kv/watch",
        watch_pool,
        _TENANT,
        "The pool as it changes, in frames",
        Spread.REPLICA,
        content_type="application/octet-stream",
        errors=(429, 503),
    ),
    Route("GET", "/v1/kv/pins", kv.list_pins, _TENANT, "All pins", Spread.ALL, errors=_FROM_ENGINE),
    Route(
        "POST",
        "/v1/kv/pins",
        kv.create_pin,
        _TENANT,
        "Compute a prompt and keep its full blocks",
        Spread.ALL,
        body=kv.PinBody,
        check=kv.check_pin,
        success=201,
        errors=_GENERATES,
    ),
    Route(
        "PATCH",
        "/v1/kv/pins/{name}",
        kv.renew_pin,
        _TENANT,
        "Extend a pin",
        Spread.ALL,
        body=kv.RenewBody,
        query=("tenant",),
        errors=(404, 503),
    ),
    Route(
        "DELETE",
        "/v1/kv/pins/{name}",
        kv.delete_pin,
        _TENANT,
        "Delete a pin",
        Spread.ALL,
        query=("tenant",),
        errors=(404, 503),
    ),
    Route(
        "GET",
        "/v1/sessions",
        sessions.list_sessions,
        _TENANT,
        "All sessions",
        Spread.ALL,
        query=("limit",),
        errors=_FROM_ENGINE,
    ),
    Route(
        "POST",
        "/v1/sessions",
        sessions.create_session,
        _TENANT,
        "Create an empty session",
        Spread.LOAD,
        body=sessions.SessionBody,
        success=201,
        errors=(409, 503),
    ),
    Route(
        "GET",
        "/v1/sessions/{session_id}",
        sessions.show_session,
        _TENANT,
        "One session",
        Spread.ID,
        query=("tenant",),
        errors=(404, 503),
    ),
    Route(
        "DELETE",
        "/v1/sessions/{session_id}",
        sessions.delete_session,
        _TENANT,
        "Delete a session",
        Spread.ID,
        query=("tenant",),
        errors=(404, 500, 503),
    ),
    Route(
        "POST",
        "/v1/sessions/{session_id}/fork",
        sessions.fork_session,
        _TENANT,
        "Create a session that continues from one of its turns",
        Spread.ID,
        body=sessions.ForkBody,
        query=("tenant",),
        success=201,
        errors=(404, 409, 500, 503),
    ),
    Route(
        "POST",
        "/v1/sessions/{session_id}/suspend",
        sessions.suspend_session,
        _TENANT,
        "Send a session's blocks to disk",
        Spread.ID,
        query=("tenant",),
        errors=(404, 409, 500, 503),
    ),
    Route(
        "POST",
        "/v1/sessions/{session_id}/resume",
        sessions.resume_session,
        _TENANT,
        "Load a suspended session's blocks",
        Spread.ID,
        query=("tenant",),
        errors=(404, 409, 429, 500, 503),
    ),
    Route(
        "GET",
        "/v1/requests",
        kv.list_requests,
        _TENANT,
        "Requests that have not ended",
        Spread.ALL,
        errors=_FROM_ENGINE,
    ),
    Route(
        "GET",
        "/v1/requests/{request_id}",
        kv.show_request,
        _TENANT,
        "One of them, with its block table, or of the last 1,000 that ended: where its prompt was found",
        Spread.ID,
        errors=(404, 503),
    ),
    *RESPONSES_ROUTES,
    *ANTHROPIC_ROUTES,
    *OLLAMA_ROUTES,
)

# The routes of a cluster's relay.
CLUSTER_ROUTES: tuple[Route, ...] = (
    *ROUTES,
    Route(
        "GET",
        "/cluster",
        about.show_cluster,
        _OPERATOR,
        "The replicas of a cluster: state, load, and how requests were distributed",
        Spread.RELAY,
    ),
)

# The routes of a server without an engine.
RENDER_ROUTES = tuple(
    route
    for route in ROUTES
    if route.handler
    in (
        *(about.health, about.version, about.openapi, about.docs, about.list_models, about.show_model),
        *(render_chat, render_completions, tokenize, detokenize, tokenizer_info),
    )
)

# Additional routes of a replica, for routers. All of a replica's routes need the cluster's key.
REPLICA_ROUTES = (
    Route(
        "GET",
        "/replica/feed",
        replica_feed,
        _OPEN,
        "A replica's block changes and load, for routers, in frames",
        Spread.RELAY,
        content_type="application/octet-stream",
        errors=(503,),
    ),
)

_Patterns = tuple[tuple[re.Pattern[str], Route], ...]


def _patterns(routes: Iterable[Route]) -> _Patterns:
    return tuple((compile_path(route.path)[0], route) for route in routes)


_PATTERNS, _REPLICA_PATTERNS = _patterns(CLUSTER_ROUTES), _patterns((*REPLICA_ROUTES, *ROUTES))
_SCOPE_KEY = "octavo.route"


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The table's entry for a method and a path. `of_path` is the first route of the path with any method."""

    route: Route | None = None
    of_path: Route | None = None
    path_params: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The path's template for metrics and logs, or "other": never a path that a client made up."""
        return "other" if self.of_path is None else self.of_path.template

    @property
    def access(self) -> Access:
        """The key that it needs: an operator's if there is no such route, so that tenants cannot probe for
        routes."""
        return Access.OPERATOR if self.route is None else self.route.access


def match_route(method: str, path: str, patterns: _Patterns = _PATTERNS) -> RouteMatch:
    """The route of a method and a path; HEAD is GET's. O(routes)."""
    method = "GET" if method == "HEAD" else method
    of_path = None
    for pattern, route in patterns:
        found = pattern.match(path)
        if found is not None:
            of_path = of_path or route
            if route.method == method:
                return RouteMatch(route, of_path, found.groupdict())
    return RouteMatch(None, of_path)


def match_of(scope: Scope) -> RouteMatch:
    """The match of a request, computed once and kept in its scope."""
    found = scope.get(_SCOPE_KEY)
    if found is None:
        found = scope[_SCOPE_KEY] = match_route(scope["method"], scope["path"])
    assert isinstance(found, RouteMatch)
    return found


def match_replica_route(scope: Scope) -> None:
    """Match the request with the replica routes as well."""
    scope[_SCOPE_KEY] = match_route(scope["method"], scope["path"], _REPLICA_PATTERNS)


def tenant_areas() -> list[str]:
    """Path prefixes that tenants may call, for messages."""
    paths = (route.path for route in ROUTES if route.access is Access.TENANT)
    return list(dict.fromkeys("/".join(path.split("/")[:3]) for path in paths))
