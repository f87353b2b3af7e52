"""Every refusal of the HTTP edge in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

One place decides which status an error has; nobody else in the server builds an error body.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import (
    EngineStopped,
    InvalidRequest,
    OctavoError,
    PinRefused,
    QueueFull,
    RequestTooLarge,
    ResizeRefused,
    SessionBusy,
    SessionRefused,
    TimedOut,
    UnknownModel,
    UnknownPin,
    UnknownSession,
    UnknownTenant,
)
from octavo.server.sse import encode_json

JsonObject = dict[str, object]

_log = logging.getLogger("octavo.server")

# A message may quote what the client sent; what it sent may be megabytes.
_MESSAGE_CHARS_MAX = 600
_RETRY_AFTER_S = 1
WANTS_KEY = {"WWW-Authenticate": "Bearer"}
BAD_KEY = "invalid_api_key"


class HttpRefusal(OctavoError):
    """A refusal that only makes sense over HTTP: a bad key, a foreign host, a body that is too large."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        code: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


def error_body(error: BaseException) -> JsonObject:
    """The OpenAI error object for any exception; what is not ours says nothing of its inside."""
    known = isinstance(error, OctavoError)
    message = str(error) if known else "the server failed on this request; its log says why"
    if len(message) > _MESSAGE_CHARS_MAX:
        message = message[:_MESSAGE_CHARS_MAX] + " ..."
    return {
        "error": {
            "message": message,
            "type": _type_of(status_of(error)),
            "param": error.param if isinstance(error, InvalidRequest) else None,
            "code": _code_of(error),
        }
    }


def error_response(error: BaseException) -> Response:
    """The whole HTTP answer for an exception."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, HttpRefusal):
        headers = error.headers
    elif isinstance(error, QueueFull):
        headers = {"Retry-After": str(_RETRY_AFTER_S)}
    elif isinstance(error, UnknownTenant):
        headers = WANTS_KEY
    return json_response(error_body(error), status=status, headers=headers)


def json_response(
    body: Mapping[str, object], *, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """`body` as compact UTF-8 JSON."""
    return Response(encode_json(body), status, dict(headers or {}), media_type="application/json")


def status_of(error: BaseException) -> HTTPStatus:
    """The HTTP status of an exception, as the tree in `octavo.errors` promises it."""
    if isinstance(error, HttpRefusal):
        return error.status
    if isinstance(error, UnknownModel | UnknownPin | UnknownSession):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, UnknownTenant):
        return HTTPStatus.UNAUTHORIZED
    if isinstance(error, PinRefused | ResizeRefused | SessionBusy | SessionRefused):
        return HTTPStatus.CONFLICT
    if isinstance(error, TimedOut):
        return HTTPStatus.REQUEST_TIMEOUT
    if isinstance(error, InvalidRequest):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, QueueFull):
        return HTTPStatus.TOO_MANY_REQUESTS
    if isinstance(error, EngineStopped):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.INTERNAL_SERVER_ERROR


# -- handlers that the application registers -----------------------------------------------------------------
async def on_octavo_error(request: Request, error: Exception) -> Response:
    """An error of our tree."""
    if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("%s %s: %s", request.method, request.url.path, error)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the router refuses: unknown routes and wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        message, code = f"there is no route {request.method} {request.url.path}", "unknown_route"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message, code = f"{request.url.path} does not take {request.method}", "method_not_allowed"
    else:
        message, code = str(error.detail), "bad_request"
    return error_response(
        HttpRefusal(HTTPStatus(error.status_code), message, code=code, headers=error.headers)
    )


async def on_any_exception(request: Request, error: Exception) -> Response:
    """A bug of ours: this request fails, and the log has the traceback."""
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(error)


def _type_of(status: HTTPStatus) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return "service_unavailable_error"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return "invalid_request_error"


def _code_of(error: BaseException) -> str | None:
    if isinstance(error, HttpRefusal):
        return error.code
    if isinstance(error, InvalidRequest) and error.code is not None:
        return error.code
    if isinstance(error, RequestTooLarge):
        return "context_length_exceeded"
    if isinstance(error, UnknownModel):
        return "model_not_found"
    if isinstance(error, UnknownPin):
        return "unknown_pin"
    if isinstance(error, UnknownSession):
        return "unknown_session"
    if isinstance(error, UnknownTenant):
        return BAD_KEY
    if isinstance(error, SessionBusy):
        return "session_busy"
    if isinstance(error, SessionRefused):
        return "session_refused"
    if isinstance(error, PinRefused):
        return "pin_refused"
    if isinstance(error, ResizeRefused):
        return "resize_refused"
    if isinstance(error, TimedOut):
        return "timeout"
    if isinstance(error, QueueFull):
        return "queue_full"
    if isinstance(error, EngineStopped):
        return "engine_stopped"
    return None
