"""Errors over HTTP: status, message and code; and OpenAI's shape of them,
{"error": {"message", "type", "param", "code"}}.

Only this module maps errors to statuses. Other APIs' shapes are in `dialects.error_shapes`, which picks the
shape by the path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

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

# A message may quote the client's input, which may be megabytes.
_MESSAGE_CHARS_MAX = 600
WANTS_KEY = {"WWW-Authenticate": "Bearer"}
BAD_KEY = "invalid_api_key"


class HttpRefusal(OctavoError):
    """A refusal that exists only over HTTP: a bad key, a foreign host, a body that is too large."""

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


def message_of(error: BaseException) -> str:
    """The message that a client gets; an exception that is not Octavo's shows no details."""
    known = isinstance(error, OctavoError)
    message = str(error) if known else "the server failed on this request; its log says why"
    return message if len(message) <= _MESSAGE_CHARS_MAX else message[:_MESSAGE_CHARS_MAX] + " ..."


def error_body(error: BaseException) -> JsonObject:
    """The OpenAI error object for any exception."""
    return {
        "error": {
            "message": message_of(error),
            "type": _type_of(status_of(error)),
            "param": error.param if isinstance(error, InvalidRequest) else None,
            "code": _code_of(error),
        }
    }


def error_headers(error: BaseException) -> dict[str, str]:
    """The answer's headers for an exception."""
    if isinstance(error, HttpRefusal):
        return error.headers
    if isinstance(error, QueueFull):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    return WANTS_KEY if isinstance(error, UnknownTenant) else {}


def json_response(
    body: Mapping[str, object], *, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """`body` as compact UTF-8 JSON."""
    return Response(encode_json(body), status, dict(headers or {}), media_type="application/json")


def status_of(error: BaseException) -> HTTPStatus:
    """The HTTP status of an exception, as the tree in `octavo.errors` states it."""
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
