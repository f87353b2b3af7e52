"""Normalises ambiguous request heads (RFC 9112, 3.2.2 and 6.3).

An absolute target, as sent to a proxy, becomes its path and its Host. After a request with both
Content-Length and Transfer-Encoding the connection is closed. Other targets than these and paths are refused,
whatever they decode to.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import shown
from octavo.server.dialects.error_shapes import error_response
from octavo.server.errors import HttpRefusal


class Targets:
    """The outermost ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_both = "content-length" in headers and "transfer-encoding" in headers
        try:
            scope = _checked(scope)
        except ValueError as error:
            what = f"the request's target is wrong: {error}"
            refusal = HttpRefusal(HTTPStatus.BAD_REQUEST, what, code="invalid_target")
            await error_response(refusal, scope)(scope, receive, send)
            return

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_and_close if has_both else send)


def _checked(scope: Scope) -> Scope:
    """The scope with a path, or the * of OPTIONS, as target. Raises ValueError."""
    if scope["path"].lower().startswith(("http://", "https://")):
        scope = _origin_form(scope)
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    is_path = target.startswith(b"/") or (target == b"*" and scope["method"] == "OPTIONS")
    if not is_path or b"#" in target + scope.get("query_string", b""):
        raise ValueError(f"it is {shown(target.decode('latin-1'))}; allowed: /path, without #")
    return scope


def _origin_form(scope: Scope) -> Scope:
    """The scope with the target's path, and its authority in place of Host. Raises ValueError."""
    target = urlsplit(scope.get("raw_path", b"").decode("ascii", "replace") or scope["path"])
    if not target.netloc or "@" in target.netloc:
        raise ValueError("it names no host; allowed: http://host/path, or /path")
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    raw_path = target.path or "/"
    return {
        **scope,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode("ascii", "replace"),
        "headers": [*others, (b"host", target.netloc.encode("ascii", "replace"))],
    }
