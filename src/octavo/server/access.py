"""The access log: one log line and one count for each answer, and the id of each request.

A client's X-Request-Id is used if it is short and plain, otherwise an id is generated. The answer returns it.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.dialects.error_shapes import REQUEST_ID_KEY, is_anthropic_path
from octavo.server.logs import ACCESS
from octavo.server.metrics import Metrics, RequestWatch
from octavo.server.routes import match_of
from octavo.server.tenant import SCOPE_KEY

REQUEST_ID_HEADER = "X-Request-Id"
REPLICA_KEY = "octavo.replica"  # in a scope: the replica that answered
TRACE_HEADER = "traceresponse"  # of W3C Trace Context, level 2
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_PROBES = frozenset({"/health", "/ping", "/metrics"})  # requested every few seconds: logged at level debug

_log = logging.getLogger(ACCESS)


class AccessLog:
    """ASGI middleware that logs and counts every answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope[REQUEST_ID_KEY] = _request_id(scope)
        status, started = int(HTTPStatus.INTERNAL_SERVER_ERROR), time.perf_counter()

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                if is_anthropic_path(scope["path"]):
                    headers["Request-Id"] = request_id
                watch = scope.get(RequestWatch.SCOPE_KEY)
                if isinstance(watch, RequestWatch) and watch.trace_header is not None:
                    headers[TRACE_HEADER] = watch.trace_header
            await send(message)

        try:
            await self._app(scope, receive, send_and_record)
        finally:
            route = match_of(scope).label
            self._metrics.count_answer(route, status)
            watch = scope.get(RequestWatch.SCOPE_KEY)
            if isinstance(watch, RequestWatch):
                watch.close(route, status)
            level = logging.DEBUG if route in _PROBES else logging.INFO
            if _log.isEnabledFor(level):
                fields = _fields(scope, request_id, route, status, time.perf_counter() - started)
                text = " ".join(
                    f"{name}={value}" for name, value in fields.items() if value not in (None, "")
                )
                _log.log(level, "%s", text, extra={"fields": fields})


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"


def _fields(scope: Scope, request_id: str, route: str, status: int, seconds: float) -> dict[str, object]:
    client = scope.get("client")
    fields: dict[str, object] = {
        "request_id": request_id,
        "client": client[0] if client else None,
        "method": scope["method"] if route != "other" else "?",
        "route": route,
        "status": status,
        "seconds": round(seconds, 4),
        "tenant": scope.get(SCOPE_KEY),
    }
    if REPLICA_KEY in scope:
        fields["replica"] = scope[REPLICA_KEY]
    watch = scope.get(RequestWatch.SCOPE_KEY)
    return fields | watch.log_fields() if isinstance(watch, RequestWatch) else fields
