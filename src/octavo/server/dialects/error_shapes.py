"""An error in the shape that a path's clients know, whoever refuses: guard, router, handler or stream.

/v1/messages...   {"type": "error", "error": {"type", "message"}}      Anthropic
/api/...          {"error": "message"}                                 Ollama
all else          {"error": {"message", "type", "param", "code"}}      OpenAI
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.errors import (
    HttpRefusal,
    JsonObject,
    error_body,
    error_headers,
    json_response,
    message_of,
    status_of,
)

ErrorShape = Callable[[BaseException], JsonObject]

_log = logging.getLogger("octavo.server")

_ANTHROPIC_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def anthropic_error(error: BaseException) -> JsonObject:
    """As Anthropic's API tells it."""
    status = status_of(error)
    other = "api_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    told = {"type": _ANTHROPIC_TYPES.get(status, other), "message": message_of(error)}
    return {"type": "error", "error": told}


def ollama_error(error: BaseException) -> JsonObject:
    """As Ollama tells it."""
    return {"error": message_of(error)}


def shape_of(path: str) -> ErrorShape:
    """The shape that is known there, whether or not there is such a route."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error
    return ollama_error if path.startswith("/api/") else error_body


def error_response(error: BaseException, path: str) -> Response:
    """The whole HTTP answer for an exception on that path."""
    return json_response(shape_of(path)(error), status=status_of(error), headers=error_headers(error))


# -- handlers that the application registers -----------------------------------------------------------------
async def on_octavo_error(request: Request, error: Exception) -> Response:
    """An error of our tree."""
    if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("%s %s: %s", request.method, request.url.path, error)
    return error_response(error, request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the router refuses: unknown routes and wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        message, code = f"there is no route {request.method} {request.url.path}", "unknown_route"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message, code = f"{request.url.path} does not take {request.method}", "method_not_allowed"
    else:
        message, code = str(error.detail), "bad_request"
    refusal = HttpRefusal(HTTPStatus(error.status_code), message, code=code, headers=error.headers)
    return error_response(refusal, request.url.path)


async def on_any_exception(request: Request, error: Exception) -> Response:
    """A bug of ours: this request fails, and the log has the traceback."""
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(error, request.url.path)
