"""Who may talk to the server: by key if keys exist, else only what a browser on a foreign page cannot fake.

With tenants the key says whose the request is, and a tenant that is no operator reaches only the routes that
are listed for it, whatever others exist.

A web page can make its visitor's browser send requests to loopback, directly or by pointing its own name at
127.0.0.1 (DNS rebinding). Such requests carry the page's name in Host or Origin, so without keys foreign
names are refused. An address in Host is not a name that somebody else could rebind. `/health` is open to
probes and tells nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import BAD_KEY, WANTS_KEY, HttpRefusal, error_response
from octavo.server.roster import Roster
from octavo.server.tenant import is_for_tenants, let_in
from octavo.tenants import digest_of

OPEN_PATHS = frozenset({"/health"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})


class Guard:
    """ASGI middleware that lets a request through or answers 401 or 403 itself, on every route."""

    def __init__(
        self, app: ASGIApp, host: str, api_keys: tuple[str, ...], roster: Roster | None = None
    ) -> None:
        self._app = app
        self._roster = roster
        self._digests = tuple(digest_of(key) for key in api_keys)
        self._names = _LOOPBACK | {host.lower()} - _WILDCARDS
        self._any_address = host in _WILDCARDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            refusal: HttpRefusal | None = _no_websocket()
        elif self._roster is not None:
            refusal = _let_tenant_in(scope, self._roster)
        else:
            refusal = self.refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)

    def refusal(self, headers: Headers) -> HttpRefusal | None:
        """Why these headers are refused, or None; there are no tenants."""
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
        digest = digest_of(_bearer(headers))
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

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


def _let_tenant_in(scope: Scope, roster: Roster) -> HttpRefusal | None:
    """Note in the scope whose key it is, and return None; or why the request is refused."""
    tenant = roster.tenants.of_key(_bearer(Headers(scope=scope)))
    if tenant is None:
        return _bad_key()
    if not tenant.operator and not is_for_tenants(scope["method"], scope["path"]):
        return HttpRefusal(
            HTTPStatus.FORBIDDEN,
            f"{scope['method']} {scope['path'][:100]} is not for this key; allowed: /v1/models, "
            "/v1/completions, /v1/chat/completions, /tokenize, /detokenize, /tokenizer_info, /v1/sessions, "
            "/v1/requests, and to see and pin what is one's own in /v1/kv; all else wants an operator's key",
            code="operators_only",
        )
    let_in(scope, tenant)
    return None


def _bearer(headers: Headers) -> str:
    """The token of the Authorization header; "", which is nobody's key, where there is none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _bad_key() -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.UNAUTHORIZED,
        "this server wants an API key that it knows: send 'Authorization: Bearer KEY'",
        code=BAD_KEY,
        headers=WANTS_KEY,
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
