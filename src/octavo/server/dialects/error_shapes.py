"""Errors in the shape of the API that the path belongs to. Guard, router, handlers and streams all use it.

/v1/messages...   {"type": "error", "error": {"type", "message"}, "request_id"}      Anthropic
/api/...          {"error": "message"}                                 Ollama
all else          {"error": {"message", "type", "param", "code"}}      OpenAI
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.server.errors import (
    JsonObject,
    error_body,
    error_headers,
    json_response,
    message_of,
    status_of,
)

ErrorShape = Callable[[BaseException], JsonObject]

REQUEST_ID_KEY = "octavo.request_id"  # in a scope

_log = logging.getLogger("octavo.server")

_ANTHROPIC_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.CONFLICT: "conflict_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}

# Anthropic's tool runner first requests a stored thread; on this code it sends all messages instead.
_UNTHREADED = {"error_code": "thread_unsupported_request"}


def anthropic_error(error: BaseException, request_id: str = "") -> JsonObject:
    """In Anthropic's shape. An error for a prompt that exceeds the context has the prefix that its clients
    search for to shorten the chat."""
    status = status_of(error)
    other = "api_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    prefix = "prompt is too long: " if isinstance(error, RequestTooLarge) else ""
    body: JsonObject = {"type": _ANTHROPIC_TYPES.get(status, other), "message": prefix + message_of(error)}
    if isinstance(error, InvalidRequest) and (error.param, error.code) == ("thread", "unsupported_parameter"):
        body["details"] = _UNTHREADED
    return {"type": "error", "error": body, "request_id": request_id or None}


def ollama_error(error: BaseException) -> JsonObject:
    """The error in Ollama's shape."""
    return {"error": message_of(error)}


def is_anthropic_path(path: str) -> bool:
    """Whether the path belongs to Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def request_id_of(scope: Scope) -> str:
    """The id by which a client can refer to its request; "" if it has none."""
    return str(scope.get(REQUEST_ID_KEY, ""))


def shape_of(scope: Scope) -> ErrorShape:
    """The error shape of the scope's path, whether or not a route matches it."""
    path = scope["path"]
    if is_anthropic_path(path):
        return lambda error: anthropic_error(error, request_id_of(scope))
    return ollama_error if path.startswith("/api/") else error_body


def error_response(error: BaseException, scope: Scope) -> Response:
    """The whole HTTP answer for an exception of that request."""
    # The middleware that writes this header does not see the answers to bugs of ours.
    request_id = {"Request-Id": request_id_of(scope)} if is_anthropic_path(scope["path"]) else {}
    headers = error_headers(error) | request_id
    return json_response(shape_of(scope)(error), status=status_of(error), headers=headers)


# -- handlers that the application registers -----------------------------------------------------------------
async def on_octavo_error(request: Request, error: Exception) -> Response:
    """Handle an error of `octavo.errors`."""
    if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("%s %s: %s", request.method, request.url.path, error)
    return error_response(error, request.scope)


async def on_any_exception(request: Request, error: Exception) -> Response:
    """Handle a bug of ours: the request fails, and the log gets the traceback."""
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(error, request.scope)
