"""Who may talk to the server: by key if keys exist, else only what a browser on a foreign page cannot fake.

A web page can make its visitor's browser send requests to loopback, directly or by pointing its own name at
127.0.0.1 (DNS rebinding). Such requests carry the page's name in Host or Origin, so without keys foreign
names are refused. An address in Host is not a name that somebody else could rebind. `/health` is open to
probes and tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import HttpRefusal, error_response

OPEN_PATHS = frozenset({"/health"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class Guard:
    """ASGI middleware that lets a request through or answers 401 or 403 itself, on every route."""

    def __init__(self, app: ASGIApp, host: str, api_keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = tuple(_digest(key) for key in api_keys)
        self._names = _LOOPBACK | {host.lower()} - _WILDCARDS
        self._any_address = host in _WILDCARDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        refusal = self.refusal(Headers(scope=scope)) if scope["type"] == "http" else _no_websocket()
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)

    def refusal(self, headers: Headers) -> HttpRefusal | None:
        """Why these headers are refused, or None."""
        if self._digests:
            return None if self._has_key(headers) else _bad_key()
        host = hostname(f"//{headers.get('host', '')}")
        if not self._is_ours(host):
            return _foreign("Host", headers.get("host", ""))
        origin = headers.get("origin")
        if origin is None:
            return None
        page = hostname(origin)
        same = page is not None and (page == host or page in self._names)
        return None if same else _foreign("Origin", origin)

    def _has_key(self, headers: Headers) -> bool:
        """True when the bearer token is one of the keys; every key is compared, in constant time."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)

    def _is_ours(self, host: str | None) -> bool:
        if host is None:
            return False
        return host in self._names or (self._any_address and _is_address(host))


def hostname(url: str) -> str | None:
    """The host of a URL without port, brackets, case and final dot; None where there is none."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return None
    return name.rstrip(".") if name else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _digest(key: str) -> bytes:
    """Equal lengths for the comparison, whatever was sent."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _bad_key() -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.UNAUTHORIZED,
        "this server wants an API key that it knows: send 'Authorization: Bearer KEY'",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _foreign(header: str, given: str) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.FORBIDDEN,
        f"the {header} header names {given[:100]!r}; without API keys only this machine's own names are "
        "served (start the server with --api-key to serve other names)",
        code="foreign_host",
    )


def _no_websocket() -> HttpRefusal:
    return HttpRefusal(HTTPStatus.FORBIDDEN, "this server speaks no WebSocket", code="no_websocket")
